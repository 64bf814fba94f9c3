# SPDX-License-Identifier: Apache-2.0
"""Virtual environments of their own, away from the checkout, as a user would make them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.venv_size import megabytes


class Venv:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        self.cwd = folder / "empty"
        self.cwd.mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        self._empty = megabytes(folder / "venv")

    def install(self, *requirements: str) -> None:
        done = self.run(
            "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements
        )
        assert done.returncode == 0, done.stderr

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("FUSED_MLP_", "PYTHON"))
        }
        return subprocess.run(
            [self.bin / program, *arguments],
            cwd=self.cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def python(self, code: str) -> str:
        """What the program prints; it has to succeed."""
        done = self.run("python", "-c", code)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def site_packages(self) -> Path:
        (found,) = (self.folder / "venv" / "lib").glob("python*/site-packages")
        return found

    def megabytes(self) -> tuple[float, float]:
        """Of the whole venv, and of it without pip and what else comes with an empty one."""
        now = megabytes(self.folder / "venv")
        return now, now - self._empty
