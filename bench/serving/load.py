# SPDX-License-Identifier: Apache-2.0
"""Load by h2load: one pre-serialised request over and over, so that the generator costs little and the same for all."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import grpc
import numpy as np

from bench.serving.systems import MODELS, System, scheduling
from fused_mlp import models
from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos.stubs import Stub

PREDICT = "/fused_mlp.v1.Inference/Predict"
# Outstanding requests as connections x streams.
LOADS = {1: (1, 1), 32: (4, 8), 128: (8, 16)}
CALIBRATION_REQUESTS = {1: 400, 32: 2000, 128: 4000}
# One thread would be the bottleneck of the fastest servers.
GENERATOR_THREADS = 2


@dataclass(frozen=True)
class Sample:
    """One run of h2load against one system."""

    requests: int
    rate: float  # requests per second
    p50_ms: float
    p99_ms: float
    cpu_us: float  # of the server, per request
    batch_rows: float  # mean; 0 when the system does not count

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def request_for(model: str, rows: int) -> fm.PredictRequest:
    x = np.random.default_rng(0).random((rows, MODELS[model][0]), np.float32)
    return fm.PredictRequest(model=model, input=fm.Tensor(shape=x.shape, data=x.tobytes()))


def write_frame(path: Path, message: bytes) -> Path:
    path.write_bytes(b"\0" + struct.pack(">I", len(message)) + message)
    return path


def verify(system: System, repository: Path, model: str, rows: int) -> None:
    """A real client gets the right answer, or there is nothing to time."""
    request = request_for(model, rows)
    with grpc.insecure_channel(f"127.0.0.1:{system.port}") as channel:
        if not system.answers:
            echo = channel.unary_unary(PREDICT)(request.SerializeToString(), timeout=10)
            assert echo == request.SerializeToString(), f"{system.name} does not echo"
            return
        output = Stub(channel, fm, "Inference").Predict(request, timeout=10).output
    import torch

    x = np.frombuffer(request.input.data, np.float32).reshape(request.input.shape)
    module = models.load(repository / model / "1").to_torch().eval()
    with torch.inference_mode():
        expected = module(torch.from_numpy(x.copy())).numpy()
    answered = np.frombuffer(output.data, np.float32).reshape(output.shape)
    np.testing.assert_allclose(answered, expected, rtol=1e-4, atol=1e-5, err_msg=system.name)


class Target(Protocol):
    name: str
    port: int


@dataclass(frozen=True)
class Load:
    """What h2load sends, and how."""

    frame: Path
    connections: int
    streams: int
    priority: bool = False
    cores: str | None = None
    headers: tuple[str, ...] = ()
    scheme: str = "http"

    def run(self, system: Target, requests: int, log: str | None = None) -> tuple[int, float]:
        """Sends about so many requests; how many it were, and how many per second."""
        if shutil.which("h2load") is None:
            raise SystemExit("h2load is missing (Debian: nghttp2-client)")
        # Every stream of every connection must have work.
        requests = max(requests, self.connections * self.streams * 4)
        command = [
            *scheduling(self.priority, self.cores),
            "h2load", f"--threads={min(GENERATOR_THREADS, self.connections)}", f"--requests={requests}",
            f"--clients={self.connections}", f"--max-concurrent-streams={self.streams}",
            f"--data={self.frame}", "--header=content-type: application/grpc", "--header=te: trailers",
            *(f"--header={header}" for header in self.headers),
            *([f"--log-file={log}"] if log else []), f"{self.scheme}://127.0.0.1:{system.port}{PREDICT}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        rate = re.search(r"finished in \S+, (\S+) req/s", done.stdout)
        succeeded = re.search(r"(\d+) succeeded, (\d+) failed", done.stdout)
        assert rate, done.stdout + done.stderr
        assert succeeded, done.stdout
        assert int(succeeded[1]) == requests, f"{system.name}: {done.stdout}"
        return requests, float(rate[1])

    def latencies_us(self, system: System, requests: int) -> np.ndarray:
        with tempfile.NamedTemporaryFile("r") as log:
            self.run(system, requests, log.name)
            return np.array([int(line.split()[2]) for line in log if line.split()[1] == "200"])


def warm_up(system: System, load: Load) -> float:
    """A short run; what it comes to in requests per second."""
    _, pace = load.run(system, CALIBRATION_REQUESTS.get(load.connections * load.streams, 200))
    return pace


def measure(system: System, load: Load, seconds: float) -> Sample:
    """A short run to learn the pace, one for the rate, and one for the latencies: writing the log costs h2load a
    system call per request, a fifth of what it can send, and more than our echo takes to answer."""
    pace = warm_up(system, load)
    cpu, (batches, rows) = system.cpu_seconds(), system.batches()
    requests, rate = load.run(system, int(pace * seconds))
    cpu = system.cpu_seconds() - cpu
    batches, rows = (after - before for after, before in zip(system.batches(), (batches, rows), strict=True))
    times_us = load.latencies_us(system, int(pace * seconds / 2))
    return Sample(
        requests=requests,
        rate=rate,
        p50_ms=float(np.percentile(times_us, 50)) / 1e3,
        p99_ms=float(np.percentile(times_us, 99)) / 1e3,
        cpu_us=cpu / requests * 1e6,
        batch_rows=rows / batches if batches else 0.0,
    )
