# SPDX-License-Identifier: Apache-2.0
"""Triton Inference Server with its Python backend, as the PyPI package nvidia-pytriton carries it: two instances,
dynamic batches without a delay."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import sys
from pathlib import Path

from bench.serving.peers.limits import MAX_BATCH, WORKERS
from bench.serving.peers.venvs import ROOT, PeerUnavailable, install, packages

CONFIG = """name: "{model}"
backend: "python"
max_batch_size: {batch}
input [{{ name: "input", data_type: TYPE_FP32, dims: [{inputs}] }}]
output [{{ name: "output", data_type: TYPE_FP32, dims: [{outputs}] }}]
instance_group [{{ kind: KIND_CPU, count: {instances} }}]
dynamic_batching {{ }}
"""


def prepare(folder: Path, model: str, widths: tuple[int, ...], source: Path) -> tuple[Path, dict[str, str]]:
    """The folder of the server's files, and its environment; writes a model repository into `folder`."""
    server = packages(install("triton-peer")) / "pytriton" / "tritonserver"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = server / "python_backend_stubs" / python / "triton_python_backend_stub"
    if not stub.exists():
        raise PeerUnavailable(f"nvidia-pytriton has no Python backend for Python {python}")
    if ctypes.util.find_library(f"python{python}") is None:
        raise PeerUnavailable(
            f"Triton's Python backend needs libpython{python}.so (Debian: libpython{python})"
        )
    used = server / "backends" / "python" / stub.name
    if not used.exists():
        shutil.copy2(stub, used)
    version = folder / model / "1"
    version.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("triton_model.py"), version / "model.py")
    config = CONFIG.format(
        model=model, batch=MAX_BATCH, inputs=widths[0], outputs=widths[-1], instances=WORKERS
    )
    (folder / model / "config.pbtxt").write_text(config)
    # Python inside the backend finds its packages by the first python3 of PATH: the peer's venv, which has ours too.
    path = f"{ROOT / 'build' / 'triton-peer' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # PYTHONPATH: the model imports `bench`, which is in no venv.
    return server, {"PATH": path, "PYTHONPATH": str(ROOT), "PEER_MODEL": str(source)}


def command(server: Path, repository: Path, http_port: int, grpc_port: int) -> list[str]:
    return [
        str(server / "bin" / "tritonserver"), f"--model-repository={repository}",
        f"--backend-directory={server / 'backends'}", f"--http-port={http_port}", f"--grpc-port={grpc_port}",
        "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--allow-metrics=false", "--log-info=false",
    ]  # fmt: skip
