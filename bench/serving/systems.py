# SPDX-License-Identifier: Apache-2.0
"""The systems of the serving benchmark, each a process that can be started, loaded and stopped."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Self

import torch
from torch import nn

from bench.serving import processes
from bench.serving.peers import triton
from bench.serving.peers.venvs import PeerUnavailable, install, version
from bench.serving.rest_peers import wait_for_http
from bench.startup import free_port
from fused_mlp import models
from fused_mlp.service.local import child_process

ROOT = Path(__file__).resolve().parents[2]
ECHO_BUILD = ROOT / "build" / "grpc_echo"

MODELS = {"mnist": (784, 512, 256, 10), "digits": (64, 128, 128, 10)}
# Slow enough that a load generator on one core can send ten times the capacity.
SHAPES = MODELS | dict.fromkeys(("wide", "wide-2"), (256, 2048, 2048, 10))
PYTHON = sys.executable


def make_repository(root: Path) -> Path:
    """784-512-256-10 with random weights, and the digits demo."""
    save_random(root, "mnist")
    shutil.copytree(Path(models.__file__).parent / "demo" / "digits", root / "digits")
    return root


def save_random(root: Path, model: str) -> None:
    torch.manual_seed(0)
    widths = SHAPES[model]
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        layers += [nn.Linear(inputs, outputs), *([nn.ReLU()] if index < len(widths) - 2 else [])]
    target = root / model / "1"
    target.mkdir(parents=True)
    models.save(models.from_torch(nn.Sequential(*layers)), target)


def build_grpc_echo() -> Path:
    """The gRPC C++ echo; raises with the compiler's words when libgrpc++-dev is not there."""
    for command in (
        ["cmake", "-S", str(Path(__file__).parent / "grpc_echo"), "-B", str(ECHO_BUILD)],
        ["cmake", "--build", str(ECHO_BUILD)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(
                f"the gRPC C++ echo could not be built (Debian: libgrpc++-dev):\n{done.stdout}{done.stderr}"
            )
    return ECHO_BUILD / "grpc_echo"


def scheduling(priority: bool, cores: str | None) -> list[str]:
    """The prefix of a command that runs under SCHED_FIFO, or on some cores only."""
    return [*(["chrt", "-f", "10"] if priority else []), *(["taskset", "-c", cores] if cores else [])]


class System:
    """One server process, with those that it starts. `answers`: it gives real predictions. `protocol`: what
    load.PROTOCOLS sends it. With a `port` it is not asked for one; it is up when the URL `ready` answers."""

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        answers: bool = True,
        priority: bool = False,
        cores: str | None = None,
        protocol: str = "Predict",
        port: int = 0,
        ready: str = "",
        variables: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:
        self.name = name
        self.answers = answers
        self.protocol = protocol
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FUSED_MLP_")}
        environment |= variables or {}
        environment |= {f"FUSED_MLP_{key.upper()}": str(value) for key, value in settings.items()}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in stop
        prefix = scheduling(priority, cores)
        self._process = subprocess.Popen(
            [*prefix, *command],
            env=environment,
            stdout=self._log if port else subprocess.PIPE,  # a pipe that is not read fills up, and blocks
            stderr=self._log,
            text=True,
            cwd=ROOT,
        )
        self.metrics_url: str | None = None
        self.rest_port: int | None = None
        self._started: dict[
            int, str
        ] = {}  # the family once it is up: a parent that has died leads to no child
        try:
            self.port = port or self._read_port()
            if ready:
                wait_for_http(ready, self._process, any_answer=False)
            self._started = processes.family(self._process.pid)
        except AssertionError as error:
            self._log.seek(0)
            said = self._log.read().strip().splitlines()
            self.stop()
            raise PeerUnavailable(f"{error}: {said[-1] if said else 'it said nothing'}") from None
        except BaseException:  # Ctrl-C while it starts
            self.stop()
            raise

    def _read_port(self) -> int:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip().isdigit():
                return int(line)
            if match := re.search(r"gRPC +\S+:(\d+)", line):
                port = int(match[1])
            elif match := re.search(r"REST +\S+:(\d+)/v2", line):
                self.rest_port = int(match[1])
            elif match := re.search(r"(http://\S+/metrics)", line):
                self.metrics_url = match[1]
            elif line.lstrip().startswith(("model ", "models ")):
                return port
        self._log.seek(0)
        raise SystemExit(f"{self.name} did not start:\n{self._log.read()}")

    def cpu_seconds(self) -> float:
        """By the clock of clock_getcpuclockid(3): what /proc says is in hundredths of a second."""
        total = 0.0
        for pid in processes.family(self._process.pid):
            with suppress(OSError):  # ended meanwhile, such as a worker of Ray that was started in reserve
                total += time.clock_gettime((~pid << 3) | 2)
        return total

    def thread_cpu_seconds(self, name: str) -> float:
        """CPU time of the threads of that name; helper threads inherit it."""
        total = 0
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            if (task / "comm").read_text().strip() == name:
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    def batches(self) -> tuple[float, float]:
        """Batches and rows run so far, over all lanes; zeros for systems that do not count."""
        if self.metrics_url is None:
            return 0.0, 0.0
        text = self._scrape()
        return _sum_of(text, "fused_mlp_batch_rows_count"), _sum_of(text, "fused_mlp_batch_rows_sum")

    def metric(self, name: str, label: str = "") -> float:
        """The sum of the samples of that name, or of those with a label like `outcome="skipped"`."""
        return _sum_of(self._scrape(), name, label)

    def _scrape(self) -> str:
        assert self.metrics_url is not None
        with urllib.request.urlopen(self.metrics_url, timeout=10) as response:
            return response.read().decode()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._started |= processes.family(self._process.pid)
        child_process.end(self._process)
        processes.end(self._started)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _sum_of(text: str, name: str, label: str = "") -> float:
    return sum(float(v) for v in re.findall(rf"^{name}{{[^}}]*{label}[^}}]*}} (\S+)", text, re.M))


# There is no setting for it: recording costs next to nothing, and this is what shows it.
METRICS_OFF = "from fused_mlp.service import _engine; _engine.record_metrics(False)"


def service(
    name: str,
    repository: Path,
    priority: bool,
    cores: str | None = None,
    program: tuple[str, ...] = ("-m", "fused_mlp.service.cli"),
    **settings: object,
) -> System:
    return System(
        name,
        [PYTHON, *program, "serve"],
        priority=priority,
        cores=cores,
        **{"grpc_port": 0, "rest_port": "off", "metrics_port": 0, "model_repository": repository, **settings},
    )


def start_all(repository: Path, model: str, priority: bool) -> list[System]:
    """Everything that is compared, in the order of the table."""
    return [
        System("gRPC C++ echo", [str(build_grpc_echo())], answers=False, priority=priority),
        System(
            "native front, echo",
            [PYTHON, "-m", "bench.serving.native_echo"],
            answers=False,
            priority=priority,
        ),
        service("native front, fused", repository, priority, front="native"),
        service(
            "native front, fused, metrics off",
            repository,
            priority,
            program=("-c", f"{METRICS_OFF}; from fused_mlp.service.cli import main; main()"),
            front="native",
        ),
        service("native front, unfused", repository, priority, front="native", variant="unfused"),
        service("Python front, fused", repository, priority, front="python"),
        System(
            "baseline: grpc.aio and torch",
            [PYTHON, "-m", "bench.serving.baseline", str(repository), model],
            priority=priority,
        ),
    ]


def mosec(repository: Path, model: str, priority: bool, _: Path) -> System:
    port = free_port()
    return System(
        MOSEC,
        [str(install("rest-peers")), "-m", "bench.serving.peers.mosec_bytes", str(port)],
        priority=priority,
        protocol="bytes",
        port=port,
        ready=f"http://127.0.0.1:{port}/",
        variables={"PEER_MODEL": str(repository / model / "1")},
    )


def triton_server(repository: Path, model: str, priority: bool, folder: Path) -> System:
    server, variables = triton.prepare(folder / "triton", model, SHAPES[model], repository / model / "1")
    http_port, grpc_port = free_port(), free_port()
    return System(
        TRITON,
        triton.command(server, folder / "triton", http_port, grpc_port),
        priority=priority,
        protocol="ModelInfer",
        port=grpc_port,
        ready=f"http://127.0.0.1:{http_port}/v2/health/ready",
        variables=variables,
    )


MOSEC, TRITON = "mosec and torch (HTTP)", "Triton, Python backend, torch"
PEERS: dict[str, Callable[[Path, str, bool, Path], System]] = {MOSEC: mosec, TRITON: triton_server}


def start_peers(
    repository: Path, model: str, priority: bool, folder: Path
) -> tuple[list[System], dict[str, str]]:
    """The peers that start, and the reason for each that does not."""
    started, left_out = [], {}
    for name, start in PEERS.items():
        try:
            started.append(start(repository, model, priority, folder / model))
        except (PeerUnavailable, OSError) as error:
            left_out[name] = str(error).partition("\n")[0]
    return started, left_out


def peer_versions(names: Iterable[str]) -> dict[str, str]:
    packages = {MOSEC: ("rest-peers", "mosec"), TRITON: ("triton-peer", "nvidia-pytriton")}
    found = {}
    for venv, package in (packages[name] for name in names):
        found[package] = version(install(venv), package)
    return found
