# SPDX-License-Identifier: Apache-2.0
"""The servers that servers.py compares: how each is started and set up, and whose version the result records."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import grpc

from bench.serving.peers import mlserver_settings
from bench.serving.peers.limits import MAX_BATCH, MAX_WAIT_S, THREADS, WORKERS
from bench.serving.peers.venvs import install, version
from bench.serving.systems import PYTHON, System, build_grpc_echo, mosec, service, triton_server
from bench.startup import free_port
from fused_mlp.protos import open_inference_pb2 as oip
from fused_mlp.protos.stubs import Stub

MODEL = "mnist"
READY = "/v2/health/ready"
RAY_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray Serve's own set of choices for throughput, but for direct ingress: there each replica listens on a port of its
    # own, for an HAProxy in front of them, and Ray's own proxy is not started.
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
}


@dataclass(frozen=True)
class Server:
    """`kind`: what the table has in brackets. `package`: whose version it is, in which venv (ours when empty). `start`
    gets the repository of the model and a folder to write to. Without one of ours there is nothing to compare; a peer
    may be missing."""

    title: str
    kind: str
    setup: str
    package: str
    start: Callable[[Path, Path], System]
    venv: str = ""
    ours: bool = False

    def version(self, running: System) -> str:
        if self.package == "tritonserver":
            with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
                told: str = (
                    Stub(channel, oip, "GRPCInferenceService")
                    .ServerMetadata(oip.ServerMetadataRequest())
                    .version
                )
                return told
        if self.package == "grpc++":
            asked = ["pkg-config", "--modversion", self.package]
            return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        return version(install(self.venv), self.package) if self.venv else metadata.version(self.package)


def _ours(variant: str) -> Callable[[Path, Path], System]:
    return lambda repository, _: service(variant, repository, False, front="native", variant=variant)


def _echo(_: Path, __: Path) -> System:
    return System("gRPC C++ echo", [str(build_grpc_echo())], answers=False)


def _model(repository: Path) -> dict[str, str]:
    return {"PEER_MODEL": str(repository / MODEL / "1")}


def _threads(repository: Path, _: Path) -> System:
    program = [PYTHON, "-m", "bench.serving.peers.grpcio_threads"]
    return System("grpcio", program, variables=_model(repository))


def _baseline(repository: Path, _: Path) -> System:
    return System("grpc.aio", [PYTHON, "-m", "bench.serving.baseline", str(repository), MODEL])


def _litserve(repository: Path, _: Path) -> System:
    port = free_port()
    return System(
        "LitServe",
        [str(install("litserve-peer")), "-m", "bench.serving.peers.litserve_json", str(port)],
        protocol="JSON",
        port=port,
        ready=f"http://127.0.0.1:{port}/health",
        variables=_model(repository),
    )


def _bentoml(repository: Path, folder: Path) -> System:
    port = free_port()
    serve = ["-m", "bentoml", "serve", "bench.serving.peers.bentoml_json:Infer"]
    home = {"BENTOML_HOME": str(folder / "bentoml"), "BENTOML_DO_NOT_TRACK": "true"}
    return System(
        "BentoML",
        [str(install("bentoml-peer")), *serve, "--host", "127.0.0.1", "--port", str(port)],
        protocol="JSON",
        port=port,
        ready=f"http://127.0.0.1:{port}/readyz",
        variables=_model(repository) | home,
    )


def _mlserver(repository: Path, folder: Path) -> System:
    http_port, grpc_port = free_port(), free_port()
    mlserver_settings.prepare(folder / "mlserver", MODEL, http_port, grpc_port)
    python = install("mlserver-peer")
    return System(
        "MLServer",
        [str(python.with_name("mlserver")), "start", str(folder / "mlserver")],
        protocol="ModelInfer",
        port=grpc_port,
        ready=f"http://127.0.0.1:{http_port}{READY}",
        variables=_model(repository),
    )


def _kserve(repository: Path, _: Path) -> System:
    return _open_inference("KServe", "kserve-peer", "kserve_server", READY, _model(repository))


def _ray_serve(repository: Path, folder: Path) -> System:
    (folder / "ray").mkdir(exist_ok=True)
    program = [str(install("ray-peer")), "-m", "bench.serving.peers.ray_serve"]
    return System(
        "Ray Serve",
        [*program, str(free_port()), str(free_port())],
        variables=_model(repository) | RAY_VARIABLES | {"RAY_TMPDIR": str(folder / "ray")},
    )


def _pytriton(repository: Path, _: Path) -> System:
    variables = _model(repository) | _own_libpython()
    return _open_inference(
        "pytriton", "triton-peer", "pytriton_server", f"/v2/models/{MODEL}/ready", variables
    )


def _open_inference(name: str, venv: str, module: str, ready: str, variables: dict[str, str]) -> System:
    """A program of peers/ whose arguments are the model, the port of HTTP and that of gRPC."""
    http_port, grpc_port = free_port(), free_port()
    program = [str(install(venv)), "-m", f"bench.serving.peers.{module}", MODEL]
    return System(
        name,
        [*program, str(http_port), str(grpc_port)],
        protocol="ModelInfer",
        port=grpc_port,
        ready=f"http://127.0.0.1:{http_port}{ready}",
        variables=variables,
    )


def _own_libpython() -> dict[str, str]:
    """Triton embeds a libpython, which must be of the same release as the standard library that it finds."""
    folder, name = (sysconfig.get_config_var(each) for each in ("LIBDIR", "LDLIBRARY"))
    return {"LD_LIBRARY_PATH": folder} if folder and (Path(folder) / str(name)).exists() else {}


_BATCHES = f"batches of at most {MAX_BATCH}"
_AT_ONCE = f"{_BATCHES} of what is waiting"
_WAITING = f"{_BATCHES}, which wait {1000 * MAX_WAIT_S:g} ms for more rows"
_ONE = "one torch thread"
_EACH = f"{_ONE} each"
_PER_CORE = "a torch thread per core"
_RAW = "raw tensors in the Open Inference Protocol"
_OWN = "the messages of this server's proto"

SERVERS: dict[str, Server] = {
    "fused": Server(
        "this server, fused", "gRPC", f"{_OWN}; settings as installed", "fused-mlp", _ours("fused"), ours=True
    ),
    "unfused": Server(
        "this server, unfused", "gRPC", f"{_OWN}; `FUSED_MLP_VARIANT=unfused`, {_PER_CORE}", "fused-mlp",
        _ours("unfused"), ours=True,
    ),
    "mosec": Server(
        "mosec", "HTTP, raw bytes", f"HTTP/1.1; {WORKERS} workers with {_EACH}, {_WAITING}", "mosec",
        lambda repository, folder: mosec(repository, MODEL, False, folder), "rest-peers",
    ),
    "triton": Server(
        "Triton", "Python backend, gRPC", f"{_RAW}; {WORKERS} instances with {_EACH}, {_AT_ONCE}", "tritonserver",
        lambda repository, folder: triton_server(repository, MODEL, False, folder), "triton-peer",
    ),
    "pytriton": Server(
        "pytriton", "gRPC", f"{_RAW}; {WORKERS} inference functions in one process with {_EACH}, {_AT_ONCE}",
        "nvidia-pytriton", _pytriton, "triton-peer",
    ),
    "litserve": Server(
        "LitServe", "HTTP, JSON", f"HTTP/1.1; {WORKERS} workers with {_EACH}, `fast_queue=True`, {_WAITING}",
        "litserve", _litserve, "litserve-peer",
    ),
    "bentoml": Server(
        "BentoML", "HTTP, JSON", f"HTTP/1.1; {WORKERS} workers with {_EACH}, adaptive {_BATCHES}", "bentoml",
        _bentoml, "bentoml-peer",
    ),
    "mlserver": Server(
        "MLServer", "gRPC", f"{_RAW}; inference in the server's own process, {_ONE}, {_WAITING}", "mlserver",
        _mlserver, "mlserver-peer",
    ),
    "kserve": Server(
        "KServe Python server", "gRPC, no batches", f"{_RAW}; one process, {_ONE}", "kserve", _kserve, "kserve-peer"
    ),
    "ray-serve": Server(
        "Ray Serve", "gRPC proxy",
        f"{_OWN}; one replica with {_ONE} behind Ray's proxy (`RAY_SERVE_THROUGHPUT_OPTIMIZED=1`, "
        f"`RAY_SERVE_ENABLE_DIRECT_INGRESS=0`), {_WAITING}",
        "ray", _ray_serve, "ray-peer",
    ),
    "grpcio": Server(
        "grpcio", f"by hand, {THREADS} threads, no batches", f"{_OWN}; a forward pass with {_ONE} for each request",
        "grpcio", _threads,
    ),
    "grpc-aio": Server(
        "grpc.aio", "by hand, with batches", f"{_OWN}; an asyncio batcher, {_PER_CORE}, {_AT_ONCE}", "grpcio", _baseline
    ),
    "echo": Server(
        "gRPC C++ library", "echo, no model", f"{_OWN}; it sends back what it gets", "grpc++", _echo
    ),
}  # fmt: skip
