# SPDX-License-Identifier: Apache-2.0
"""This server beside other servers with the same model, one row per request: `python -m bench.serving.servers`. One
server is up at a time, because some use the CPU when idle; in each round all have their turn. The first run installs
the others under build/; later ones take about six minutes, `--quick` two."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console

from bench.provenance import describe_run, h2load_version, write_result
from bench.serving.compared import MODEL, SERVERS
from bench.serving.load import LOADS, PROTOCOLS, Load, measure, verify
from bench.serving.peers.venvs import PeerUnavailable
from bench.serving.systems import MODELS, System, make_repository
from bench.summary import medians

RESULTS = Path(__file__).parent.parent / "results" / "servers.json"
# Each run is as long as the pace of the last one says; the first has only cold requests to go by.
WARM_UP_S = (0.0, 0.1, 0.3)
# A server that does not start (of which SystemExit is one sign), answers wrongly (ValueError: in another shape, or not
# in JSON), or fails under load.
FAILURES = (
    PeerUnavailable, OSError, AssertionError, ValueError, grpc.RpcError, subprocess.SubprocessError, SystemExit,
)  # fmt: skip


@dataclass
class Comparison:
    """Samples, versions and reasons of all rounds so far."""

    samples: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def leave_out(self, name: str, error: BaseException) -> None:
        """For good: a median over fewer rounds than the others' would not compare."""
        self.samples.pop(name, None)
        said = error.details() if isinstance(error, grpc.RpcError) else str(error)
        first, *others = (said or "").strip().splitlines() or [type(error).__name__]
        self.left_out[SERVERS[name].title] = f"{first} {others[-1].strip()}" if others else first

    def as_result(self) -> dict[str, Any]:
        systems = {}
        for name, samples in self.samples.items():
            server = SERVERS[name]
            about = {key: getattr(server, key) for key in ("title", "kind", "setup", "package", "ours")}
            systems[name] = about | {"loads": {load: medians(rounds) for load, rounds in samples.items()}}
        return {"systems": systems, "left_out": self.left_out}


def compare(names: list[str], rounds: int, seconds: float, folder: Path, console: Console) -> Comparison:
    repository = make_repository(folder / "models")
    found = Comparison()
    for turn in range(1, rounds + 1):
        for name in names:
            server = SERVERS[name]
            if server.title in found.left_out:
                continue
            console.print(f"[dim]round {turn}, {server.title}: starting", highlight=False)
            try:
                with server.start(repository, folder) as system:
                    verify(system, repository, MODEL, 1)
                    found.versions.setdefault(server.package, server.version(system))
                    of_round = measure_loads(
                        system, seconds, folder, f"round {turn}, {server.title}", console
                    )
            except FAILURES as error:
                if server.ours:
                    raise
                found.leave_out(name, error)
                console.print(f"left out: {server.title}: {found.left_out[server.title]}", markup=False)
                continue
            samples = found.samples.setdefault(name, {outstanding: [] for outstanding in of_round})
            for outstanding, sample in of_round.items():
                samples[outstanding].append(sample)
    return found


def measure_loads(
    system: System, seconds: float, folder: Path, what: str, console: Console
) -> dict[str, dict[str, Any]]:
    """One sample by outstanding requests."""
    body = folder / f"{system.protocol}.body"
    body.write_bytes(PROTOCOLS[system.protocol].body(MODEL, 1))
    of_round = {}
    for outstanding, (connections, streams) in LOADS.items():
        load = Load(body, connections, streams, protocol=system.protocol).with_answers_of(system)
        pace = 0.0
        for warm_up_s in WARM_UP_S:
            _, pace = load.run(system, int(pace * warm_up_s))
        sample = measure(system, load, seconds, pace)
        of_round[str(outstanding)] = sample.as_dict()
        console.print(f"[dim]{what}, {outstanding} outstanding: {sample.rate:,.0f} req/s", highlight=False)
    return of_round


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run of h2load")
    parser.add_argument("--quick", action="store_true", help="one round of 0.3 seconds")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(SERVERS), help=", ".join(SERVERS))
    options = parser.parse_args(given)
    if options.quick:
        options.rounds, options.seconds = 1, 0.3
    if shutil.which("h2load") is None:
        parser.exit(1, "h2load is missing (Debian: nghttp2-client)\n")
    console = Console(width=180, stderr=True)
    result = {
        **describe_run("bench.serving.servers", ("grpcio", "torch"), {"h2load": h2load_version()}),
        "rounds": options.rounds,
        "seconds": options.seconds,
        "loads": list(LOADS),
        "model": MODEL,
        "shape": "-".join(map(str, MODELS[MODEL])),
    }
    with tempfile.TemporaryDirectory() as folder:
        names = options.only or list(SERVERS)
        found = compare(names, options.rounds, options.seconds, Path(folder), console)
    result |= found.as_result()
    result["versions"] |= found.versions
    write_result(options.output, result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
