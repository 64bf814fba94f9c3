# SPDX-License-Identifier: Apache-2.0
"""Figures of `python -m bench.serving`: requests end to end, REST, tracing, and what the A/B costs."""

from __future__ import annotations

from typing import Any

from bench.docs.markdown import ms, paragraphs, percent, provenance, table, times
from bench.docs.registry import Result, Results, figure

GRPC_ECHO, OWN_ECHO = "gRPC C++ echo", "native front, echo"
FUSED, UNFUSED, BASELINE = "native front, fused", "native front, unfused", "baseline: grpc.aio and torch"
UNCOUNTED, PYTHON_FRONT = "native front, fused, metrics off", "Python front, fused"
# How a system is written where its name in the results is not enough.
TITLES = {
    GRPC_ECHO: "gRPC C++ library, echo (no model)",
    OWN_ECHO: "our native front, echo (no model)",
    FUSED: f"**{FUSED}**",
    BASELINE: "grpc.aio, torch eager, an asyncio batcher",
}
MODEL_TITLES = {"digits": "digits, 64-128-128-10", "mnist": "784-512-256-10"}


def cell(result: Result, model: str, system: str, outstanding: int, field: str) -> float:
    """The median over the rounds."""
    return float(result["models"][model][system][str(outstanding)][field])


def _systems(result: Result, model: str) -> list[str]:
    return [name for name in result["models"][model] if name != UNCOUNTED]


@figure("serving-table")
def serving_table(results: Results) -> str:
    """Requests per second, latency and CPU per request of every system, at 1, 32 and 128 outstanding requests."""
    result = results["serving"]
    parts = []
    for model in result["models"]:
        heads = [MODEL_TITLES[model]]
        for n in result["loads"]:
            heads += [f"{n} outstanding: req/s", "p50 / p99 ms", "CPU us"]
        rows = []
        for system in _systems(result, model):
            row = [TITLES.get(system, system)]
            for n in result["loads"]:
                rate, p50, p99, cpu = (
                    cell(result, model, system, n, field) for field in ("rate", "p50_ms", "p99_ms", "cpu_us")
                )
                row += [f"{rate:,.0f}", f"{p50:.2f} / {p99:.2f}", f"{cpu:.0f}"]
            rows.append(row)
        parts.append(table(heads, rows))
    return paragraphs(*parts, provenance(result))


@figure("serving-summary")
def serving_summary(results: Results) -> str:
    """Sentences: fused against unfused, against the baseline and against the gRPC C++ library."""
    result = results["serving"]

    def ratios(first: str, second: str, outstanding: int = 128, field: str = "rate") -> str:
        found = [
            times(
                cell(result, model, first, outstanding, field)
                / cell(result, model, second, outstanding, field)
            )
            for model in result["models"]
        ]
        return " and ".join(found)

    models = " and ".join(MODEL_TITLES[model] for model in result["models"])
    others = [
        f"{ratios(FUSED, name)} those of {name.removeprefix('baseline: ')}"
        for name in _systems(result, next(iter(result["models"])))
        if name not in (GRPC_ECHO, OWN_ECHO, FUSED, UNFUSED, PYTHON_FRONT)
    ]
    return (
        f"For {models}, in this order. With 128 requests outstanding, the fused server answers "
        f"{ratios(FUSED, UNFUSED)} the requests of the same server unfused; {'; '.join(others)}. It answers "
        f"{ratios(FUSED, GRPC_ECHO)} the requests that the gRPC C++ library answers without a model. With one request "
        f"outstanding the p50 of fused is {ratios(FUSED, UNFUSED, 1, 'p50_ms')} that of unfused."
    )


@figure("serving-goals")
def serving_goals(results: Results) -> str:
    """Ratios of the native front, with what we set out to reach."""
    result = results["serving"]
    models = [model for model in ("mnist", "digits") if model in result["models"]]

    def ratio(model: str, first: str, second: str, outstanding: int, field: str) -> float:
        return cell(result, model, first, outstanding, field) / cell(
            result, model, second, outstanding, field
        )

    def row(text: str, goal: str, *asked: Any) -> list[str]:
        return [text, *(times(ratio(model, *asked)) for model in models), goal]

    rows = [
        row("fused, of the gRPC C++ echo", "1.5x, 2.5x", FUSED, GRPC_ECHO, 128, "rate"),
        row("our echo, of the gRPC C++ echo", "4x", OWN_ECHO, GRPC_ECHO, 128, "rate"),
        row(
            "fused, p50 at 1 outstanding, of the gRPC C++ echo's",
            "at most 1.2x",
            FUSED,
            GRPC_ECHO,
            1,
            "p50_ms",
        ),
        row("fused, of the baseline", "20x", FUSED, BASELINE, 128, "rate"),
        row("fused, p50 at 1 outstanding, of unfused", "at most 0.7x", FUSED, UNFUSED, 1, "p50_ms"),
        row("fused, of unfused", "1.3x", FUSED, UNFUSED, 128, "rate"),
        row("without recording metrics, of fused", "at most 1.01x", UNCOUNTED, FUSED, 128, "rate"),
    ]
    if many := result.get("many_rows"):
        for where, said in (
            ("apart", "load generator on other cores"),
            ("shared", "load generator on the same cores"),
        ):
            share = many[where]["served_rows_per_s"] / many[where]["kernel_rows_per_s"]
            rows.append(
                [
                    f"64 rows per request, of the kernel's own rows/s, {said}",
                    percent(share),
                    *[""] * (len(models) - 1),
                    "85 %",
                ]
            )
    heads = [
        "req/s at 128 outstanding, unless the row says otherwise",
        *(MODEL_TITLES[m] for m in models),
        "goal",
    ]
    return paragraphs(table(heads, rows), provenance(result))


@figure("serving-ab")
def serving_ab(results: Results) -> str:
    """The cost of the split and the shadow at 128 outstanding: change against everything off, with its interval."""
    from bench.serving.ab import ARMS, PLAIN, RUNS_PER_TURN, change
    from bench.serving.ab import percent as interval

    result = results["serving-ab"]
    ab = result["ab"]
    rows = [
        [arm, *(interval(change(ab, arm, 128, field)) for field in ("rate", "cpu_us", "p99_ms"))]
        for arm in ARMS
        if arm != PLAIN
    ]
    heads = ["change against everything off", "req/s", "CPU per request", "p99"]
    return paragraphs(
        table(heads, rows),
        f"The mean over {ab['turns']} turns of {RUNS_PER_TURN} runs at 128 outstanding, and its 95 % interval. "
        "The first row "
        f"compares the server with itself: its differences are the noise. The shadow's thread took "
        f"{100 * ab['shadow_cpu_share']:.1f} % of the server's CPU time.",
        provenance(result),
    )


@figure("rest-table")
def rest_table(results: Results) -> str:
    """REST beside gRPC of the same server, and other servers that speak JSON over HTTP."""
    result = results["serving-rest"]
    parts = []
    for model, systems in result["results"].items():
        grpc = systems["gRPC"]
        rows = [
            [name]
            + [f"{ms(found['p50_ms'])}, {times(found['p50_ms'] / grpc['p50_ms'])}"]
            + [f"{found[n]:,.0f}, {times(found[n] / grpc[n])}" for n in ("32", "128")]
            if found is not grpc
            else [name, ms(found["p50_ms"]), *(f"{found[n]:,.0f}" for n in ("32", "128"))]
            for name, found in systems.items()
        ]
        parts.append(
            table([MODEL_TITLES[model], "p50 at 1 outstanding", "req/s at 32", "req/s at 128"], rows)
        )
    return paragraphs(*parts, provenance(result))


@figure("rest-summary")
def rest_summary(results: Results) -> str:
    """Sentences: REST as a share of gRPC."""
    found = results["serving-rest"]["results"]

    def share(name: str) -> str:
        return " and ".join(
            times(systems[name]["128"] / systems["gRPC"]["128"]) for systems in found.values()
        )

    models = " and ".join(MODEL_TITLES[model] for model in found)
    return (
        f"With 128 requests outstanding ({models}), REST with binary tensors over HTTP/2 answers "
        f"{share('REST, binary, HTTP/2')} the requests of gRPC, and over HTTP/1.1 "
        f"{share('REST, binary, HTTP/1.1')}. With JSON "
        f"it is {share('REST, JSON, HTTP/2')} over HTTP/2, and {share('REST, JSON, HTTP/1.1')} over HTTP/1.1."
    )


@figure("tracing-table")
def tracing_table(results: Results) -> str:
    """The cost of a traceparent and an exporter: requests per second and CPU per request."""
    return _costs(results["tracing"])


@figure("keys-table")
def keys_table(results: Results) -> str:
    """The cost of keys and quotas: requests per second and CPU per request."""
    return _costs(results["keys"])


def _costs(result: Result) -> str:
    """Each case beside the first."""
    plain = None
    rows = []
    for name, found in result["cases"].items():
        rate, cpu = found["rate"], found["cpu_us"]
        plain = plain or cpu
        rows.append([name, f"{rate:,.0f}", f"{cpu:.2f} us", f"{cpu - plain:+.2f} us"])
    heads = [
        f"{result['model']}, {result['outstanding']} outstanding", "req/s", "server CPU per request", "more "
        "than the first"
    ]  # fmt: skip
    return paragraphs(table(heads, rows), provenance(result))


@figure("tracing-summary")
def tracing_summary(results: Results) -> str:
    """One sentence: CPU per request without, with a header, and with an exporter."""
    result = results["tracing"]
    cpu = {name: found["cpu_us"] for name, found in result["cases"].items()}
    plain = cpu.pop("no exporter, no traceparent")
    said = ", ".join(f"{name}: {us - plain:+.2f} us" for name, us in cpu.items())
    return f"A request of the demo model takes {plain:.2f} us of the server's CPU without tracing; {said}."
