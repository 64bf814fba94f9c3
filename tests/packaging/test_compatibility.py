# SPDX-License-Identifier: Apache-2.0
"""Other people's pins: the client works with the oldest versions it declares, and after tritonclient has been installed
on top of it; one process may use both."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT
from tests.packaging.test_wheel import SMOKE
from tests.packaging.venvs import Venv
from tests.support.server import Server

TRITON = "import tritonclient.grpc as triton"
OURS = "from fused_mlp import Client; from fused_mlp.protos import health_pb2, open_inference_pb2"
BOTH = """
import sys, numpy as np
x = np.zeros((1, 64), np.float32)
tensor = triton.InferInput("input", [1, 64], "FP32")
tensor.set_data_from_numpy(x)
theirs = triton.InferenceServerClient(sys.argv[1]).infer("digits", [tensor]).as_numpy("output")
with Client(sys.argv[1]) as client:
    assert (client.predict("digits", x).output == theirs).all()
print("ok")
"""
# The first grpcio and numpy with wheels for this Python, where those are newer than our floors.
FIRST_WHEELS = {"grpcio": "1.67.0", "numpy": "2.1.0"} if sys.version_info >= (3, 13) else {}


def floors() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = dict(requirement.split(">=") for requirement in project["dependencies"])
    return [f"{name}=={version}" for name, version in (declared | FIRST_WHEELS).items()]


def test_works_with_the_oldest_versions_it_declares(
    wheel: Path, installed_server: Server, tmp_path: Path
) -> None:
    venv = Venv(tmp_path)
    venv.install(str(wheel), *floors())
    done = venv.run("python", SMOKE, installed_server.target)
    assert done.stdout == "ok\n", done.stderr
    health = venv.run("fused-mlp", "health", "--target", installed_server.target)
    assert health.returncode == 0, health.stderr


# 2.50 asks for protobuf below 5 and numpy below 2, which has no wheels for Python 3.13.
@pytest.mark.parametrize("version", ["2.50.0", ""] if sys.version_info < (3, 13) else [""])
def test_works_after_tritonclient_and_in_one_process_with_it(
    wheel: Path, installed_server: Server, tmp_path: Path, version: str
) -> None:
    venv = Venv(tmp_path)
    venv.install(str(wheel))
    venv.install(f"tritonclient[grpc]=={version}" if version else "tritonclient[grpc]")
    done = venv.run("python", SMOKE, installed_server.target)
    assert done.stdout == "ok\n", done.stderr
    for order in ((TRITON, OURS), (OURS, TRITON)):
        done = venv.run("python", "-c", "\n".join([*order, BOTH]), installed_server.target)
        assert done.stdout == "ok\n", done.stderr
