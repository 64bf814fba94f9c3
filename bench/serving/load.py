# SPDX-License-Identifier: Apache-2.0
"""Load by h2load: one pre-serialised request over and over, so that the generator costs little and the same for all."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import tempfile
import typing
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from bench.serving.systems import SHAPES, System, scheduling
from fused_mlp import models
from fused_mlp.protos import fused_mlp_pb2 as fm
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.protos.stubs import Stub

PREDICT = "/fused_mlp.v1.Inference/Predict"
GRPC_HEADERS = ("content-type: application/grpc", "te: trailers")
# Outstanding requests as connections x streams.
LOADS = {1: (1, 1), 32: (4, 8), 128: (8, 16)}
CALIBRATION_REQUESTS = {1: 400, 32: 2000, 128: 4000}
# Percentiles of the latencies: p99.9 needs a thousand requests, which every system answers.
QUANTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9)
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
    latency_ms: dict[str, float]  # by quantile

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Protocol:
    """The requests of a system: path, headers, and the body for some rows of a model."""

    path: str
    headers: tuple[str, ...]
    body: Callable[[str, int], bytes]
    http1: bool = False


def rows_of(model: str, rows: int) -> np.ndarray:
    return np.random.default_rng(0).random((rows, SHAPES[model][0]), np.float32)


def request_for(model: str, rows: int) -> fm.PredictRequest:
    x = rows_of(model, rows)
    return fm.PredictRequest(model=model, input=fm.Tensor(shape=x.shape, data=x.tobytes()))


def write_frame(path: Path, message: bytes) -> Path:
    path.write_bytes(_frame(message))
    return path


def _frame(message: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(message)) + message


def infer_request(model: str, rows: int) -> oip.ModelInferRequest:
    """The same rows in the Open Inference Protocol."""
    x = rows_of(model, rows)
    tensor = oip.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=x.shape)
    return oip.ModelInferRequest(model_name=model, inputs=[tensor], raw_input_contents=[x.tobytes()])


PROTOCOLS = {
    "Predict": Protocol(
        PREDICT, GRPC_HEADERS, lambda model, rows: _frame(request_for(model, rows).SerializeToString())
    ),
    "ModelInfer": Protocol(
        "/inference.GRPCInferenceService/ModelInfer",
        GRPC_HEADERS,
        lambda model, rows: _frame(infer_request(model, rows).SerializeToString()),
    ),
    "bytes": Protocol(
        "/inference",
        ("content-type: application/octet-stream",),
        lambda model, rows: rows_of(model, rows).tobytes(),
        http1=True,
    ),
    "JSON": Protocol(
        "/inference",
        ("content-type: application/json",),
        lambda model, rows: json.dumps({"rows": rows_of(model, rows).tolist()}).encode(),
        http1=True,
    ),
}


def verify(system: System, repository: Path, model: str, rows: int) -> None:
    """A real client gets the right answer, or there is nothing to time."""
    if not system.answers:
        message = request_for(model, rows).SerializeToString()
        with grpc.insecure_channel(f"127.0.0.1:{system.port}") as channel:
            echo = channel.unary_unary(PREDICT)(message, timeout=10)
        assert echo == message, f"{system.name} does not echo"
        return
    import torch

    x = rows_of(model, rows)
    module = models.load(repository / model / "1").to_torch().eval()
    with torch.inference_mode():
        expected = module(torch.from_numpy(x)).numpy()
    answered = np.frombuffer(_ask(system, model, rows), np.float32).reshape(expected.shape)
    np.testing.assert_allclose(answered, expected, rtol=1e-4, atol=1e-5, err_msg=system.name)


def _ask(system: System, model: str, rows: int) -> bytes:
    """The outputs as bytes of float32."""
    protocol = PROTOCOLS[system.protocol]
    if protocol.http1:
        request = urllib.request.Request(
            f"http://127.0.0.1:{system.port}{protocol.path}",
            protocol.body(model, rows),
            dict(header.split(": ") for header in protocol.headers),
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            answer: bytes = response.read()
        return answer if system.protocol == "bytes" else np.array(json.loads(answer), np.float32).tobytes()
    with grpc.insecure_channel(f"127.0.0.1:{system.port}") as channel:
        if system.protocol == "ModelInfer":
            stub = Stub(channel, oip, "GRPCInferenceService")
            return stub.ModelInfer(infer_request(model, rows), timeout=10).raw_output_contents[0]
        return Stub(channel, fm, "Inference").Predict(request_for(model, rows), timeout=10).output.data


class Target(typing.Protocol):
    name: str
    port: int


@dataclass(frozen=True)
class Load:
    """The requests of h2load, and how many are outstanding."""

    frame: Path
    connections: int
    streams: int
    priority: bool = False
    cores: str | None = None
    headers: tuple[str, ...] = ()
    scheme: str = "http"
    protocol: str = "Predict"
    # The size of a right answer with its frame: h2load counts a gRPC error, which has no message, as a success.
    answer_bytes: float = 0.0
    per_second: int = 0  # at most so many requests; 0: as many as are answered

    def run(self, system: Target, requests: int, log: str | None = None) -> tuple[int, float]:
        """Sends about so many requests; how many it were, and how many per second."""
        sent, rate, received = self._run_h2load(system, requests, log)
        # Not all of it: timings in an answer vary by a few bytes.
        assert received >= 0.98 * sent * self.answer_bytes, f"{system.name} answered requests with errors"
        return sent, rate

    def with_answers_of(self, system: Target) -> Load:
        """The same load, whose runs fail when answers are shorter than those of this trial."""
        if PROTOCOLS[self.protocol].http1:  # its status says it; and numbers in JSON differ in length
            return self
        sent, _, received = replace(self, connections=1, streams=1)._run_h2load(system, 8, None)
        return replace(self, answer_bytes=received / sent)

    def _run_h2load(self, system: Target, requests: int, log: str | None) -> tuple[int, float, int]:
        """Requests, their rate, and bytes of all answers without their heads."""
        if shutil.which("h2load") is None:
            raise SystemExit("h2load is missing (Debian: nghttp2-client)")
        # Every stream of every connection must have work.
        protocol = PROTOCOLS[self.protocol]
        outstanding = self.connections * self.streams
        # HTTP/1.1: each outstanding request has a connection of its own.
        connections, streams = (outstanding, 1) if protocol.http1 else (self.connections, self.streams)
        requests = max(requests, outstanding * 4)
        command = [
            *scheduling(self.priority, self.cores),
            "h2load", f"--threads={min(GENERATOR_THREADS, connections)}", f"--requests={requests}",
            f"--clients={connections}", f"--max-concurrent-streams={streams}", f"--data={self.frame}",
            *(f"--header={header}" for header in (*protocol.headers, *self.headers)),
            *(["--h1"] if protocol.http1 else []), *([f"--log-file={log}"] if log else []),
            *([f"--rps={self.per_second / connections}"] if self.per_second else []),
            f"{self.scheme}://127.0.0.1:{system.port}{protocol.path}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        rate = re.search(r"finished in \S+, (\S+) req/s", done.stdout)
        succeeded = re.search(r"(\d+) succeeded, (\d+) failed", done.stdout)
        assert rate, done.stdout + done.stderr
        assert succeeded, done.stdout
        outcome = "; ".join(re.findall(r"^(?:requests|status codes): .*", done.stdout, re.MULTILINE))
        assert int(succeeded[1]) == requests, f"{system.name}: {outcome}"
        received = re.search(r"\((\d+)\) data", done.stdout)
        assert received, done.stdout
        return requests, float(rate[1]), int(received[1])

    def latencies_us(self, system: System, requests: int) -> np.ndarray:
        with tempfile.NamedTemporaryFile("r") as log:
            self.run(system, requests, log.name)
            return np.array([int(line.split()[2]) for line in log if line.split()[1] == "200"])


def warm_up(system: System, load: Load) -> float:
    """The requests per second of a short run."""
    _, pace = load.run(system, CALIBRATION_REQUESTS.get(load.connections * load.streams, 200))
    return pace


def measure(system: System, load: Load, seconds: float, pace: float | None = None) -> Sample:
    """A short run to learn the pace unless it is known, one for the rate, and one for the latencies: writing the log
    costs h2load a system call per request, a fifth of what it can send, and more than our echo takes to answer."""
    pace = pace or warm_up(system, load)
    (batches, rows), cpu = system.batches(), system.cpu_seconds()  # the scrape is not a part of it
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
        latency_ms={f"{q:g}": float(np.percentile(times_us, q)) / 1e3 for q in QUANTILES},
    )
