# SPDX-License-Identifier: Apache-2.0
"""The cost of a start: from exec to bound ports and to ready, resident memory, the health command, and (with
--venvs) the size of an install. `python -m bench.startup`; all measurements take turns, so that a slow minute of the
machine hits all alike. The floor is a Python process that only imports the libraries a server cannot do without."""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.provenance import describe_run, write_result
from bench.venv_size import megabytes
from fused_mlp.service.client import Client

RESULTS = Path(__file__).parent / "results" / "startup.json"
REQUESTS = 1000
FLOOR = "import numpy, pydantic, google.protobuf.message, prometheus_client"
RSS = "print([line for line in open('/proc/self/status') if line.startswith('VmRSS')][0].split()[1])"
IMPORT = "import time; t = time.perf_counter(); import fused_mlp; print(time.perf_counter() - t)"

# Name in the results: what it is, its unit, and at most how much is wanted.
MEASURES: dict[str, tuple[str, str, float | None]] = {
    "bound_s": ("exec to bound ports", "s", None),
    "ready_s": ("exec to ready", "s", 0.6),
    "floor_s": ("  floor: a process that only imports libraries", "s", None),
    "ready_mb": ("resident when ready", "MB", 90),
    "served_mb": (f"resident after {REQUESTS} requests and a scrape", "MB", 90),
    "floor_mb": ("  floor: a process that only imports libraries", "MB", None),
    "health_s": ("fused-mlp health", "s", 0.25),
    "import_s": ("import fused_mlp", "s", 0.05),
    "server_venv_mb": ("venv of fused-mlp[serve], without pip", "MB", 150),
    "client_venv_mb": ("venv of fused-mlp, without pip", "MB", None),
}


@dataclass(frozen=True)
class RunningServer:
    process: subprocess.Popen[bytes]
    grpc_port: int
    metrics_port: int
    bound_s: float
    ready_s: float

    @property
    def resident_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(command: list[str], settings: Mapping[str, str] | None = None) -> Iterator[RunningServer]:
    grpc_port, metrics_port = free_port(), free_port()
    ports = {"FUSED_MLP_GRPC_PORT": str(grpc_port), "FUSED_MLP_METRICS_PORT": str(metrics_port)}
    ports["FUSED_MLP_REST_PORT"] = "off"
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("FUSED_MLP_")}
    begun = time.perf_counter()
    environment = inherited | ports | dict(settings or {})
    process = subprocess.Popen([*command, "serve"], env=environment, stdout=subprocess.DEVNULL)
    try:
        wait_until(process, lambda: _listens(grpc_port) and _listens(metrics_port))
        bound_s = time.perf_counter() - begun
        wait_until(process, lambda: get(metrics_port, "/readyz") == 200)
        yield RunningServer(process, grpc_port, metrics_port, bound_s, time.perf_counter() - begun)
    finally:
        process.terminate()
        process.wait()


def wait_until(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    while not condition():
        if process.poll() is not None:
            sys.exit("the server did not start")
        time.sleep(0.002)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def get(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def measure_server(command: list[str]) -> dict[str, float]:
    with started(command) as server:
        found = {"bound_s": server.bound_s, "ready_s": server.ready_s, "ready_mb": server.resident_mb}
        target = f"127.0.0.1:{server.grpc_port}"
        begun = time.perf_counter()
        subprocess.run([*command, "health", "--target", target], check=True, stdout=subprocess.DEVNULL)
        found["health_s"] = time.perf_counter() - begun
        with Client(target) as client:
            row = client.model("digits").version().example
            for _ in range(REQUESTS):
                client.predict("digits", row)
        get(server.metrics_port, "/metrics")
        found["served_mb"] = server.resident_mb
    return found


def measure_imports(python: str) -> dict[str, float]:
    begun = time.perf_counter()
    floor = subprocess.run([python, "-c", f"{FLOOR}\n{RSS}"], check=True, capture_output=True, text=True)
    floor_s = time.perf_counter() - begun
    imported = subprocess.run([python, "-c", IMPORT], check=True, capture_output=True, text=True)
    return {
        "floor_s": floor_s,
        "floor_mb": int(floor.stdout) / 1024,
        "import_s": float(imported.stdout),
    }


def measure_venvs(wheel: Path, folder: Path) -> dict[str, float]:
    sizes = {}
    for name, extra in (("server_venv_mb", "[serve]"), ("client_venv_mb", "")):
        venv = folder / name
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        empty = megabytes(venv)
        subprocess.run([venv / "bin/pip", "install", "-q", f"{wheel.resolve()}{extra}"], check=True)
        sizes[name] = megabytes(venv) - empty
    return sizes


def show(console: Console, found: dict[str, dict[str, float]]) -> None:
    table = Table()
    for column in ("", "median", "best", "wanted"):
        table.add_column(column, justify="left" if not column else "right")
    for name, (text, unit, wanted) in MEASURES.items():
        if name not in found:
            continue
        digits = 3 if unit == "s" else 1
        middle, best = found[name]["median"], found[name]["best"]
        verdict = (
            "" if wanted is None else f"{'met' if middle < wanted else 'MISSED'}, under {wanted:g} {unit}"
        )
        table.add_row(text, f"{middle:.{digits}f} {unit}", f"{best:.{digits}f} {unit}", verdict)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.startup", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="how often everything is measured")
    parser.add_argument(
        "--python", default=sys.executable, help="an interpreter that has fused-mlp installed"
    )
    parser.add_argument(
        "--venvs", action="store_true", help="also install --wheel into fresh venvs and weigh them"
    )
    parser.add_argument("--wheel", type=Path, help="for --venvs")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.venvs and options.wheel is None:
        parser.error("--venvs needs --wheel")
    console = Console()
    command = [options.python, "-m", "fused_mlp.service.cli"]
    if script := shutil.which("fused-mlp", path=str(Path(options.python).parent)):
        command = [script]  # as users start it

    samples: dict[str, list[float]] = {}
    for turn in range(options.rounds):
        for name, value in {**measure_server(command), **measure_imports(options.python)}.items():
            samples.setdefault(name, []).append(value)
        console.print(f"[dim]round {turn + 1}: ready in {samples['ready_s'][-1]:.3f} s")
    if options.venvs:
        with tempfile.TemporaryDirectory() as folder:
            samples |= {name: [size] for name, size in measure_venvs(options.wheel, Path(folder)).items()}
    found = {name: {"median": median(values), "best": min(values)} for name, values in samples.items()}
    show(console, found)
    result = {
        **describe_run("bench.startup", ("numpy", "pydantic", "protobuf", "grpcio")),
        "rounds": options.rounds,
        "measures": found,
    }
    write_result(options.output, result)


if __name__ == "__main__":
    main()
