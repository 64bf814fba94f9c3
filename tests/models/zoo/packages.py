# SPDX-License-Identifier: Apache-2.0
"""Packages whose modules are in the zoo and in docs/models: installed once, into a venv of their own that borrows ours,
so that torch and numpy are never installed again. `python -m tests.models.zoo.packages` does it ahead of a test run and
prints the folder to import them from."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

from deploy.cluster.packages import CACHE

PACKAGES = (
    "transformers>=5",
    "rtdl_revisiting_models",
    "rtdl_num_embeddings",
    "stable-baselines3>=2.7",
    "skl2onnx",
    "onnxscript",
    "keras>=3",
)
_FOLDER = CACHE / "zoo"


@cache
def install_packages() -> str | None:
    """Makes them importable, after everything of our own; says in words why it could not."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "zoo.lock").open("w") as lock:  # the parts of the suite run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (reason := _install()) is not None:
            return reason
    if str(site_packages()) not in sys.path:
        sys.path.append(str(site_packages()))
    return None


def site_packages() -> Path:
    """The folder that the packages are imported from, once they are installed."""
    (found,) = _FOLDER.glob("lib/python*/site-packages")
    return found


def _install() -> str | None:
    done = _FOLDER / ".installed"
    wanted = "\n".join(PACKAGES)
    if done.exists() and done.read_text() == wanted:
        return None
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(_FOLDER)], check=True)
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site_packages() / "ours.pth").write_text("\n".join(ours))
    constraints = _FOLDER / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version(name)}\n" for name in ("torch", "numpy")))
    pip = [str(_FOLDER / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    installed = subprocess.run([*pip, "-c", str(constraints), *PACKAGES], capture_output=True, text=True)
    if installed.returncode:
        lines = installed.stderr.strip().splitlines() or ["no reason given"]
        return f"pip could not install {', '.join(PACKAGES)}: {lines[-1]}"
    done.write_text(wanted)
    return None


if __name__ == "__main__":
    sys.exit(install_packages() or print(site_packages()))
