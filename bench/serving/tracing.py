# SPDX-License-Identifier: Apache-2.0
"""The server's cost of OpenTelemetry: one server without an exporter and two with one, the demo model (the cheapest
requests), with and without a traceparent, in turns. Run as `python -m bench.serving.tracing`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.docs.figures.serving import tracing_table
from bench.docs.registry import Results
from bench.provenance import describe_run, h2load_version, write_result
from bench.serving.load import LOADS, Load, measure, request_for, write_frame
from bench.serving.systems import System, make_repository, service
from bench.summary import medians
from tests.support.otlp_receiver import OtlpReceiver

RESULTS = Path(__file__).resolve().parents[1] / "results" / "tracing.json"
MODEL, OUTSTANDING = "digits", 128
_CONTEXT = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"
SAMPLED, NOT_SAMPLED = f"traceparent: 00-{_CONTEXT}-01", f"traceparent: 00-{_CONTEXT}-00"
# By name: the sampler of the server, none for a server without an exporter, and the header of the requests.
CASES: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "no exporter, no traceparent": (None, ()),
    "no exporter, not sampled": (None, (NOT_SAMPLED,)),
    "no exporter, sampled: exemplars": (None, (SAMPLED,)),
    "exporter, not sampled": ("parentbased_traceidratio", (NOT_SAMPLED,)),
    "exporter, 1 % sampled": ("parentbased_traceidratio", ()),
    "exporter, all sampled": ("parentbased_always_on", (SAMPLED,)),
}


def start(stack: ExitStack, repository: Path, sampler: str | None, endpoint: str) -> System:
    """The exporter's variables are the environment's, which a server inherits."""
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_TRACES_SAMPLER": sampler or "",
        "OTEL_TRACES_SAMPLER_ARG": "0.01",
    }
    if sampler:
        os.environ.update(variables)
    try:
        return stack.enter_context(service(str(sampler), repository, False, front="native"))
    finally:
        for name in variables:
            os.environ.pop(name, None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run of h2load")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    console = Console(stderr=True)
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        repository = make_repository(Path(folder) / "models")
        receiver = stack.enter_context(OtlpReceiver())
        samplers = {sampler for sampler, _ in CASES.values()}
        servers = {sampler: start(stack, repository, sampler, receiver.grpc_endpoint) for sampler in samplers}
        frame = write_frame(Path(folder) / "frame", request_for(MODEL, 1).SerializeToString())
        for turn in range(options.rounds):
            for name, (sampler, headers) in CASES.items():
                load = Load(frame, *LOADS[OUTSTANDING], headers=headers)
                sample = measure(servers[sampler], load, options.seconds)
                samples[name].append(sample.as_dict())
                console.print(f"[dim]round {turn + 1}, {name}: {sample.rate:,.0f} req/s")
    result = {
        **describe_run(
            "bench.serving.tracing", ("grpcio", "opentelemetry-sdk"), {"h2load": h2load_version()}
        ),
        "model": MODEL,
        "outstanding": OUTSTANDING,
        "cases": {name: medians(rounds) for name, rounds in samples.items()},
    }
    write_result(options.output, result)
    print(tracing_table(Results(fresh={"tracing": result})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
