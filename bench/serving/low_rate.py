# SPDX-License-Identifier: Apache-2.0
"""CPU per request and latency at fixed rates, far below saturation, with one and with all kernel threads:
`python -m bench.serving.low_rate`. One connection has one request outstanding; h2load sends the requests of 10 ms one
after the other, then waits. The servers take turns; their first runs at each rate are not measured."""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.provenance import describe_run, h2load_version, write_result
from bench.serving.load import Load, measure, request_for, verify, write_frame
from bench.serving.systems import make_repository, service
from bench.summary import medians_by_load

RESULTS = Path(__file__).parent.parent / "results" / "low-rate.json"
# Requests per second, and how many requests one sample has. The latencies are of half as many, sent afterwards.
REQUESTS = {100: 300, 1000: 2000, 5000: 2000}
WARM_UP_S = 0.2
THREADS: dict[str, dict[str, object]] = {"one thread": {"threads": 1}, "a thread per core": {}}


def measure_model(
    repository: Path, model: str, options: argparse.Namespace, folder: Path, console: Console
) -> dict[str, dict[str, dict[str, Any]]]:
    frame = write_frame(folder / f"{model}.frame", request_for(model, 1).SerializeToString())
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with ExitStack() as stack:
        systems = [
            stack.enter_context(service(name, repository, False, front="native", **settings))
            for name, settings in THREADS.items()
        ]
        for system in systems:
            verify(system, repository, model, 1)
            found[system.name] = {str(rate): [] for rate in REQUESTS}
        loads = {rate: Load(frame, 1, 1, per_second=rate) for rate in REQUESTS}
        for rate, load in loads.items():
            for system in systems:
                load.run(system, int(rate * WARM_UP_S))
        for turn in range(options.rounds):
            for rate, load in loads.items():
                for system in systems:
                    seconds = options.share * REQUESTS[rate] / rate
                    sample = measure(system, load, seconds, pace=rate)
                    found[system.name][str(rate)].append(sample.as_dict())
                    said = f"{system.name} {sample.cpu_us:.1f} us, p50 {sample.p50_ms:.3f} ms"
                    console.print(f"[dim]{model}, round {turn + 1}, {rate} requests/s: {said}")
    return medians_by_load(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the requests of each sample")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    console = Console(width=180, stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        repository = make_repository(Path(folder) / "models")
        result = {
            **describe_run("bench.serving.low_rate", (), {"h2load": h2load_version()}),
            "rounds": options.rounds,
            "models": {
                model: measure_model(repository, model, options, Path(folder), console)
                for model in ("digits", "mnist")
            },
        }
    write_result(options.output, result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
