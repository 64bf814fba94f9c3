"""Clients that are not part of our own environment: tritonclient, which pins older packages, in a venv of its own,
and @grpc/grpc-js from npm. Installed once into a cache; `python -m tests.conformance.foreign_clients` does it ahead
of a test run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = Path(os.environ.get("FUSED_MLP_TEST_CACHE", ROOT / "build" / "test-clients"))
TRITON_PACKAGES = ("tritonclient[grpc]>=2.50", "numpy")
NODE_PACKAGES = ("@grpc/grpc-js@^1.12", "@grpc/proto-loader@^0.7")


class ForeignClients:
    """Each run answers a JSON object: case name -> what happened."""

    def run_triton(self, *arguments: str) -> dict[str, object]:
        python = install_triton()
        return _run([str(python), str(HERE / "triton_cases.py"), *arguments])

    def run_node(self, *arguments: str) -> dict[str, object]:
        folder = install_node()
        environment = {"NODE_PATH": str(folder / "node_modules"), "PROTOS": str(ROOT / "protos")}
        return _run(["node", str(HERE / "grpc_js_cases.js"), *arguments], environment)


def install_triton() -> Path:
    folder = CACHE / "triton"
    python = folder / "bin" / "python"
    done = folder / ".installed"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *TRITON_PACKAGES], check=True)
        done.touch()
    return python


def install_node() -> Path:
    folder = CACHE / "node"
    done = folder / ".installed"
    if not done.exists():
        assert shutil.which("npm"), "npm is missing: install Node.js, whose gRPC client these tests use"
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder)]
        subprocess.run([*command, *NODE_PACKAGES], check=True)
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
    install_triton()
    install_node()
