# SPDX-License-Identifier: Apache-2.0
"""Figures of starting, low rates, reloading, many models in one server, and a GPU batch's cost on the host."""

from __future__ import annotations

from collections.abc import Iterator

from bench.docs.figures.serving import MODEL_TITLES
from bench.docs.markdown import megabytes, ms, number, paragraphs, provenance, span, table, times
from bench.docs.registry import Result, Results, figure

STARTUP = {
    "bound_s": "from exec to bound ports",
    "ready_s": "from exec to ready",
    "ready_mb": "resident memory when ready",
    "served_mb": "resident after 1000 requests and a scrape",
    "health_s": "`fused-mlp health`",
    "import_s": "`import fused_mlp`",
    "server_venv_mb": "venv of `fused-mlp[serve]`, without pip",
    "client_venv_mb": "venv of `fused-mlp`, without pip",
}
FLOORS = {"ready_s": "floor_s", "ready_mb": "floor_mb"}


def _with_unit(name: str, value: float) -> str:
    if name.endswith("_mb"):
        return f"{value:.0f} MB"
    return f"{value:.2f} s" if value >= 0.05 else f"{1000 * value:.0f} ms"


@figure("startup-table")
def startup_table(results: Results) -> str:
    """Cold start and resident memory of the demo server, with a floor: a process that only imports libraries."""
    result = results["startup"]
    measures = result["measures"]
    rows = []
    for name, text in STARTUP.items():
        if name in measures:
            floor = measures.get(FLOORS.get(name, ""))
            middle, best = (_with_unit(name, measures[name][which]) for which in ("median", "best"))
            rows.append([text, middle, best, _with_unit(name, floor["median"]) if floor else ""])
    heads = [f"{result['rounds']} starts", "median", "best", "floor, median"]
    return paragraphs(table(heads, rows), provenance(result))


@figure("reload-table")
def reload_table(results: Results) -> str:
    """Latency of live traffic while a version is loaded beside it, and while none is."""
    result = results["reload"]
    fields = ("p50_ms", "p99_ms", "p99.9_ms", "max_ms")
    rows = [
        [text, *(f"{result[key][field]:.2f} ms" for field in fields), f"{result[key]['requests']:,}"]
        for key, text in (("while_loading", "while a version is loaded"), ("otherwise", "otherwise"))
    ]
    heads = ["digits, 32 outstanding", "p50", "p99", "p99.9", "longest", "requests"]
    return paragraphs(
        table(heads, rows),
        f"{result['loads']} versions of 1024-4096-1024, each loaded and checked in {result['load_s']:.1f} s (median).",
        provenance(result),
    )


@figure("canaries-table")
def canaries_table(results: Results) -> str:
    """Verdicts of short canaries on versions whose right verdict is known."""
    result = results["canaries"]
    rows = [
        [
            case,
            f"{each['canaries']}",
            f"{each.get('promoted', 0)}",
            f"{each.get('rolled_back', 0)}",
            f"{each['wrong']}",
        ]
        for case, each in result["cases"].items()
    ]
    return paragraphs(
        table(["version", "canaries", "promoted", "taken back", "wrong"], rows), provenance(result)
    )


@figure("many-models-table")
def many_models_table(results: Results) -> str:
    """One to ten thousand models in one server: time to ready, memory, threads, /metrics, latency."""
    result = results["many-models"]
    found = result["results"]
    base = found[0]["resident_mb"]
    rows = []
    for each in found:
        grown = (each["resident_mb"] - base) * 2**20 / (each["models"] * result["weight_bytes"])
        rows.append(
            [
                f"{each['models']:,}", each["load"], f"{each['ready_s']:.1f} s", f"{each['resident_mb']:.0f} MB",
                f"{max(grown, 0):.2f}x" if each["models"] > 1 else "", str(each["threads"]),
                f"{each['metrics_bytes'] / 1e3:.0f} kB", f"{each['metrics_gzip_bytes'] / 1e3:.0f} kB",
                f"{1e3 * each['scrape_s']:.0f} ms", f"{1e6 * each['predict_p50_s']:.0f} us",
            ]
        )  # fmt: skip
    heads = [
        "models", "loading", "ready after", "resident", "of the float32 weights, beyond one model", "threads",
        "`/metrics`", "in gzip", "scrape", "Predict, p50",
    ]  # fmt: skip
    return paragraphs(table(heads, rows, left=2), provenance(result))


@figure("many-models-active")
def many_models_active(results: Results) -> str:
    """The same once every model has had a request: /metrics, and /readyz beside scrapes."""
    rows = [
        [
            f"{each['models']:,}", megabytes(each["active_metrics_bytes"]),
            f"{each['active_metrics_gzip_bytes'] / 1e3:,.0f} kB", f"{1e3 * each['active_scrape_s']:.0f} ms",
            *(f"{1e3 * each[f'readyz_{which}_s']:.1f} ms" for which in ("p50", "p99", "max")),
        ]
        for each in results["many-models"]["results"] if "active_scrape_s" in each
    ]  # fmt: skip
    heads = ["models with traffic", "`/metrics`", "in gzip", "scrape", "`/readyz`, p50", "p99", "longest"]
    return table(heads, rows)


@figure("cuda-launcher-table")
def cuda_launcher_table(results: Results) -> str:
    """Host time of a batch on a GPU, with a driver that does nothing: native and Python launcher."""
    result = results["cuda-launcher"]
    cells = result["cells"]
    rows = [
        [name, *(f"{number(cell[key])} us" for cell in cells)]
        for name, key in (("native", "native_us"), ("Python", "python_us"))
    ]
    ratios = [cell["python_us"] / cell["native_us"] for cell in cells]
    return paragraphs(
        table(["rows", *(str(cell["rows"]) for cell in cells)], rows),
        f"The Python launcher takes {span(min(ratios), max(ratios), '{:.0f}')} times as long.",
        provenance(result),
    )


@figure("reload-summary")
def reload_summary(results: Results) -> str:
    """One sentence: p99 while a version is loaded."""
    result = results["reload"]
    loading, otherwise = result["while_loading"], result["otherwise"]
    return (
        f"A saturated server answers with a p99 of {loading['p99_ms']:.2f} ms while a version of 1024-4096-1024 "
        "is loaded, and of "
        f"{otherwise['p99_ms']:.2f} ms otherwise ({times(loading['p99_ms'] / otherwise['p99_ms'])})."
    )


@figure("many-models-summary")
def many_models_summary(results: Results) -> str:
    """One sentence: what the largest number of models costs."""
    result = results["many-models"]
    found = {(each["models"], each["load"]): each for each in result["results"]}
    base = result["results"][0]["resident_mb"]
    most = max(models for models, _ in found)
    eager, lazy = found[most, "eager"], found[most, "lazy"]
    each_kb = (eager["resident_mb"] - base) * 2**20 / most / 1e3
    return (
        f"{most:,} models of {result['shape']} ({result['weight_bytes'] / 1e3:.0f} kB of weights each) take "
        f"{each_kb:.0f} kB of memory each, and the server is ready after {eager['ready_s']:.0f} s. Loaded on "
        "demand it is "
        f"ready after {lazy['ready_s']:.0f} s, with {lazy['resident_mb']:.0f} MB in all."
    )


@figure("low-rate")
def low_rate(results: Results) -> str:
    """CPU per request and latency at fixed rates, with one kernel thread and with one per core."""
    result = results["low-rate"]
    parts = []
    for model, systems in result["models"].items():
        rates = list(next(iter(systems.values())))
        heads = [MODEL_TITLES[model], *(f"{int(rate):,} requests/s: CPU, p50" for rate in rates)]
        rows = [
            [name, *(f"{number(found[rate]['cpu_us'])} us, {ms(found[rate]['p50_ms'])}" for rate in rates)]
            for name, found in systems.items()
        ]
        parts.append(table(heads, rows))
    return paragraphs(*parts, provenance(result))


@figure("overload")
def overload(results: Results) -> str:
    """Goodput by offered load and deadline, of every system as a share of its own capacity."""
    result = results["overload"]
    parts = []
    for deadline in result["deadlines_ms"]:
        heads = [f"deadlines of {deadline} ms", "capacity", *(f"{load:g}x" for load in result["loads"])]
        rows = []
        for name, found in result["systems"].items():
            runs = {run["load"]: run for run in found["runs"] if run["deadline_ms"] == deadline}
            shares = [f"{runs[load]['goodput']:.0%}" for load in result["loads"]]
            rows.append([name, f"{found['capacity']:,.0f} requests/s", *shares])
        parts.append(table(heads, rows))
    says = (
        f"Answers within the deadline as a share of what each system answers at most; {result['shape']}, "
        f"{result['rows']} rows per request, arrivals at random, the server on one core and the callers, who leave at "
        "their deadline, on another."
    )
    left_out = "".join(f" Left out: {name} ({why})." for name, why in result["left_out"].items())
    return paragraphs(*parts, says + left_out, *_situations(result), provenance(result))


def _situations(result: Result) -> Iterator[str]:
    """This server in other situations, and how it refuses; a result may lack them."""
    found = dict(result.get("situations", {}))
    if not found:
        return
    recovery = found.pop("recovery", None)
    curve = result["systems"].get("fused-mlp", {"runs": []})["runs"]
    runs = [(f"deadlines of {run['deadline_ms']} ms", run) for run in curve]
    runs += [(name, run) for name, each in found.items() for run in each["runs"]]
    rows = []
    for name, run in runs:
        if run["load"] <= 1:
            continue
        refused, expired = (
            f"{run[key] / run['sent']:.1%}" for key in ("refused_at_admission", "expired_or_gave_up")
        )
        refused_p99, good_p99 = (ms(run[key][1]) if key in run else "" for key in ("refused_ms", "good_ms"))
        rows.append(
            [name, f"{run['offered']:.2g}x", f"{run['goodput']:.0%}", refused, refused_p99, expired, good_p99]
        )
    yield table(
        [
            "fused-mlp",
            "offered",
            "goodput",
            "refused at admission",
            "p99 of that",
            "expired",
            "answered, p99",
        ],
        rows,
    )
    yield (
        "Goodput is a share of capacity (open loop: the most that is answered per second under 1.2 times the load); "
        "the refused and the expired are shares of what was sent. Expired: accepted, then dropped from the queue, or "
        "the caller left first. Deadlines are 50 ms unless a situation says otherwise. The small model is "
        "64-128-128-10 with 128 rows per request; mixed deadlines are 10, 50 and 200 ms; on a machine of two cores the "
        "callers share the second one of a server with two; waiting clients do not leave at their deadline; without "
        f"deadlines `FUSED_MLP_TARGET_QUEUE_MS={result['target_queue_ms']}` bounds the queue."
    )
    if recovery:
        (run,) = recovery["runs"]
        yield (
            f"Recovery: in the first 100 ms after half a second of ten times the capacity, {run['goodput']:.0%} of the "
            f"requests at {run['load']:g} times the capacity are answered within 50 ms."
        )
