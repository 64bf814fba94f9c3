# SPDX-License-Identifier: Apache-2.0
"""The venvs of the peers. They are made once; where the packages cannot be had, one line says why."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
OUR_PACKAGES = sysconfig.get_path("purelib")
INSTALL_TIMEOUT_S = 600
# By the name of the venv. The first package names the version that results record.
VENVS = {
    "rest-peers": ("mosec>=0.9", "fastapi>=0.110", "uvicorn[standard]>=0.30"),
    "triton-peer": ("nvidia-pytriton>=0.7",),
    "litserve-peer": ("litserve>=0.2",),
    "bentoml-peer": ("bentoml>=1.4",),
    "mlserver-peer": ("mlserver>=1.7",),
    "kserve-peer": ("kserve>=0.15", "protobuf<7"),
    "ray-peer": ("ray[serve]>=2.40",),
}


class PeerUnavailable(Exception):
    """A peer that cannot be measured here, with the reason in one line."""


def install(name: str) -> Path:
    """The venv's interpreter."""
    venv = ROOT / "build" / name
    python = venv / "bin" / "python"
    if not (venv / ".installed").exists():
        _run([sys.executable, "-m", "venv", "--clear", str(venv)])
        # A package that requires torch fails here, instead of getting another torch with gigabytes of CUDA.
        (venv / "constraints.txt").write_text("torch==0+ours\n")
        constraint = f"--constraint={venv / 'constraints.txt'}"
        _run([str(python), "-m", "pip", "install", "--quiet", constraint, *VENVS[name]])
        (packages(python) / "torch_of_ours.pth").write_text(
            f"import site; site.addsitedir({OUR_PACKAGES!r})\n"
        )
        (venv / ".installed").touch()
    return python


def packages(python: Path) -> Path:
    (found,) = python.parents[1].glob("lib/python*/site-packages")
    return found


def version(python: Path, package: str) -> str:
    command = [str(python), "-c", f"import importlib.metadata as m; print(m.version({package!r}))"]
    return subprocess.check_output(command, text=True).strip()


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"{command[-1]} was not installed within {INSTALL_TIMEOUT_S} s") from None
    if done.returncode:
        reason = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise PeerUnavailable(f"{' '.join(command[-2:])}: {reason}")
