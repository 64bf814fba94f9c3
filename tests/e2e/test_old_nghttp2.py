# SPDX-License-Identifier: Apache-2.0
"""A libnghttp2 without the fix of CVE-2024-28182 at run time: the native front is refused, whatever built it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fused_mlp.service.fronts.selection import native_front_problem
from tests.support.server import COMMAND, Server, environment

pytestmark = pytest.mark.skipif(bool(native_front_problem()), reason=native_front_problem())

# Stands in for the old library: takes any number of CONTINUATION frames.
OLD = "long nghttp2_session_mem_recv(void* s, const void* data, unsigned long size) { return (long)size; }"


@pytest.fixture(scope="module")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++")
    assert compiler, "g++ is missing: it builds this package too"
    folder = tmp_path_factory.mktemp("old")
    (folder / "old.c").write_text(OLD)
    library = folder / "old.so"
    subprocess.run([compiler, "-xc", "-shared", "-fPIC", "-o", library, folder / "old.c"], check=True)
    return library


def test_the_native_front_is_refused_by_name(old_library: Path) -> None:
    env = environment(front="native") | {"LD_PRELOAD": str(old_library)}
    done = subprocess.run(COMMAND, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "FUSED_MLP_FRONT=native: this libnghttp2 takes CONTINUATION frames without end" in done.stderr


def test_the_python_front_serves_instead(old_library: Path) -> None:
    with Server(command=["env", f"LD_PRELOAD={old_library}", *COMMAND], front="auto") as server:
        assert "(python front)" in server.banner
        assert "CVE-2024-28182" in server.log()
