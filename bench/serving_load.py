"""Load by h2load: one pre-serialised request over and over, so that the generator costs little and the same for all."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc
import numpy as np

import models
from bench.serving_systems import MODELS, System
from protos import fused_mlp_pb2 as fm
from protos.fused_mlp_pb2_grpc import InferenceStub

PREDICT = "/fused_mlp.v1.Inference/Predict"
# Outstanding requests as connections x streams.
LOADS = {1: (1, 1), 32: (4, 8), 128: (8, 16)}
CALIBRATION_REQUESTS = {1: 400, 32: 2000, 128: 4000}


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
        output = InferenceStub(channel).Predict(request, timeout=10).output
    import torch

    x = np.frombuffer(request.input.data, np.float32).reshape(request.input.shape)
    module = models.load(repository / model / "1").to_torch().eval()
    with torch.inference_mode():
        expected = module(torch.from_numpy(x.copy())).numpy()
    answered = np.frombuffer(output.data, np.float32).reshape(output.shape)
    np.testing.assert_allclose(answered, expected, rtol=1e-4, atol=1e-5, err_msg=system.name)


def run(
    system: System,
    frame: Path,
    connections: int,
    streams: int,
    requests: int,
    priority: bool,
    threads: int = 1,
    headers: tuple[str, ...] = (),
) -> Sample:
    if shutil.which("h2load") is None:
        raise SystemExit("h2load is missing (Debian: nghttp2-client)")
    # Every stream of every connection must have work.
    requests = max(requests, connections * streams * 4)
    with tempfile.NamedTemporaryFile("r") as log:
        command = [
            *(["chrt", "-f", "10"] if priority else []),
            "h2load", f"--threads={min(threads, connections)}", f"--requests={requests}",
            f"--clients={connections}", f"--max-concurrent-streams={streams}", f"--data={frame}",
            "--header=content-type: application/grpc", "--header=te: trailers", f"--log-file={log.name}",
            *(f"--header={header}" for header in headers),
            f"http://127.0.0.1:{system.port}{PREDICT}",
        ]  # fmt: skip
        cpu, (batches, rows) = system.cpu_seconds(), system.batches()
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        cpu = system.cpu_seconds() - cpu
        batches, rows = (
            after - before for after, before in zip(system.batches(), (batches, rows), strict=True)
        )
        times_us = np.array([int(line.split()[2]) for line in log if line.split()[1] == "200"])
    rate = re.search(r"finished in \S+, (\S+) req/s", done.stdout)
    succeeded = re.search(r"(\d+) succeeded, (\d+) failed", done.stdout)
    assert rate, done.stdout + done.stderr
    assert succeeded, done.stdout
    assert int(succeeded[1]) == requests, f"{system.name}: {done.stdout}"
    return Sample(
        requests=requests,
        rate=float(rate[1]),
        p50_ms=float(np.percentile(times_us, 50)) / 1e3,
        p99_ms=float(np.percentile(times_us, 99)) / 1e3,
        cpu_us=cpu / requests * 1e6,
        batch_rows=rows / batches if batches else 0.0,
    )


def measure(
    system: System,
    frame: Path,
    outstanding: int,
    seconds: float,
    priority: bool,
    connections: tuple[int, int] | None = None,
    headers: tuple[str, ...] = (),
) -> Sample:
    """A short run to learn the pace, then one of about `seconds`."""
    where = connections or LOADS[outstanding]
    first = run(system, frame, *where, CALIBRATION_REQUESTS.get(outstanding, 200), priority, headers=headers)
    return run(system, frame, *where, int(first.rate * seconds), priority, headers=headers)
