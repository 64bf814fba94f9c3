# SPDX-License-Identifier: Apache-2.0
"""The measurements of docs/profiling.md: `fused-mlp profile` on four models, a sweep over widths and batch sizes, and a
trace of a live server. `python -m bench.profiling`; each round profiles all models: a slow minute affects all."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bench.provenance import describe_run, write_result
from bench.serving.systems import MODELS, System, make_repository, service
from bench.startup import free_port
from bench.summary import medians
from fused_mlp import Client
from fused_mlp.kernels.profile.results import Regime

RESULTS = Path(__file__).parent / "results" / "profiling.json"
# By the name of the section that shows it.
PROFILES = {
    "linear": ("--dims", "512,512"),
    "geglu": (
        "--dims", "768,3072,768", "--activation", "gelu", "--gated", "--expect", "launches=5,fused.launches=1",
    ),
    "small": ("--dims", "64,128,128,10", "--expect", "ops=5,launches=5"),
    "wide": ("--dims", "784,512,256,10"),
}  # fmt: skip
COMMON = ("--threads", "1")
CLIENTS = 4
ATTEMPTS = 3  # of a profile that has problems, such as another process that used the CPU


def command_of(name: str) -> str:
    return " ".join(("fused-mlp", "profile", *PROFILES[name], *COMMON))


def profile(*options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "fused_mlp.service.cli", "profile", *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def profile_without_problems(*options: str) -> dict[str, Any]:
    """Repeats a profile that has problems; if all attempts have some, there is no result."""
    for attempt in range(1, ATTEMPTS + 1):
        report = profile(*options)
        if not report["problems"]:
            return report
        said = "\n".join(report["problems"])
        print(f"attempt {attempt} of {ATTEMPTS}: {report['model']}: {said}", file=sys.stderr)
    raise SystemExit(
        f"fused-mlp profile {' '.join(options)} has problems at each of {ATTEMPTS} attempts:\n{said}"
    )


def measure_models(options: argparse.Namespace, console: Console) -> dict[str, dict[str, Any]]:
    batches = ("--batch", "1,8") if options.quick else ()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in PROFILES}
    for turn in range(options.rounds):
        for name, what in PROFILES.items():
            report = profile_without_problems(*what, *COMMON, *batches, "--budget", str(options.budget))
            found[name].append(report | {"layers": _layers(report["flames"])})
            console.print(f"[dim]round {turn + 1}: {report['model']}")
    return {name: summarize(name, reports) for name, reports in found.items()}


def summarize(name: str, reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Times are medians over the reports; counts, advice, layers and their steps are those of the first report."""
    first = reports[0]
    wrong = [
        each for report in reports for each in report["expectations"] if each["expected"] != each["found"]
    ]
    return {
        "command": command_of(name),
        "kernel": first["kernel"],
        "points": [summarize_point(list(each)) for each in zip(*(r["points"] for r in reports), strict=True)],
        "advice": first["advice"][0],
        "expectations": first["expectations"],
        "wrong_expectations": len(wrong),
        "layers": {
            batch: [
                {"what": step["what"], "us": layer["us"], "phases": layer["phases"]}
                for layer, step in zip(
                    layers, (s for s in first["steps"] if str(s["batch"]) == batch), strict=True
                )
            ]
            for batch, layers in first["layers"].items()
        },
    }


def summarize_point(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One variant at one batch size. The bound is that of the run with the median share, as in the report: `itself`
    if no limit explains most of the time."""
    first = runs[0]
    regimes = sorted((Regime(**run["regime"]) for run in runs), key=lambda each: each.reached)
    middle = regimes[len(regimes) // 2]
    counts = first["counts"]
    return {
        "variant": first["variant"],
        "batch": first["batch"],
        **{key: medians([run[key] for run in runs]) for key in ("time_us", "kernel_us")},
        "overhead_us": medians([run["regime"]["overhead_us"] for run in runs]),
        "bound_by": middle.name if middle.explains else "itself",
        "reached": middle.reached,
        **{key: sum(counts[key].values()) for key in ("operators", "launches")},
        **{key: counts[key] for key in ("bookkeeping", "bytes_allocated")},
    }


def _layers(flames: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """By batch size, the layers of one call of the fused kernel, each with its phases in us."""
    found = {}
    for name, flame in flames.items():
        variant, _, batch = name.partition("/")
        if variant == "fused":
            (operator,) = (each for each in flame["children"] if each["name"] == "fused_mlp::mlp")
            found[batch] = [
                {
                    "name": layer["name"],
                    "us": layer["us"],
                    "phases": {p["name"]: p["us"] for p in layer["children"]},
                }
                for layer in operator["children"]
                if layer["category"] == "cpu_kernel"
            ]
    return found


def measure_sweep(quick: bool) -> dict[str, Any]:
    small = ("--sweep-widths", "32,64", "--sweep-batches", "1,2") if quick else ()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.json"
        # Only its cells are kept; a cell that another process disturbed says `busy`.
        report = profile(
            *PROFILES["small"], *COMMON, "--batch", "1", "--variants", "eager,fused", "--budget", "0.05",
            "--sweep", "--sweep-file", str(file), *small,
        )  # fmt: skip
    found: dict[str, Any] = report["sweep"]
    return found


def measure_live(seconds: float) -> dict[str, Any]:
    """The demo model under load from `CLIENTS` Python clients, each with one request at a time."""
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        admin = free_port()
        repository = make_repository(Path(folder))
        with (
            service("live", repository, False, front="native", admin_port=admin) as server,
            ThreadPoolExecutor(CLIENTS) as pool,
        ):
            clients = [pool.submit(_call, server, stop) for _ in range(CLIENTS)]
            try:
                report = profile(
                    "--live", f"127.0.0.1:{admin}", "--seconds", str(seconds), "--trace-dir", folder
                )
            finally:
                stop.set()
            for each in clients:
                each.result()  # raises what ended a client before its time
    return {"clients": CLIENTS, "seconds": seconds, **{key: report[key] for key in ("requests", "phases")}}


def _call(server: System, stop: threading.Event) -> None:
    rows = np.random.default_rng(0).random((1, MODELS["digits"][0]), np.float32)
    with Client(f"127.0.0.1:{server.port}") as client:
        while not stop.is_set():
            client.predict("digits", rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=0.2, help="seconds per variant and batch size")
    parser.add_argument("--quick", action="store_true", help="one round, two batch sizes, a small sweep")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.budget = 1, 0.05
    console = Console(width=180, stderr=True)
    result = {
        **describe_run("bench.profiling", ("torch",)),
        "rounds": options.rounds,
        "models": measure_models(options, console),
    }
    console.print("[dim]sweep")
    result["sweep"] = measure_sweep(options.quick)
    console.print("[dim]live")
    result["live"] = measure_live(0.5 if options.quick else 2.0)
    write_result(options.output, result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
