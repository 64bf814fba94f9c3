# SPDX-License-Identifier: Apache-2.0
"""Where a result comes from: machine, versions, commit, command and date, the same for every file in bench/results."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Outputs of the benchmarks: writing one must not mark the following parts of a run as dirty.
_WRITTEN = ("bench/results", "docs", "README.md")


def describe_commit() -> str:
    """The commit, marked when the work tree has changes that can matter."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return "unknown"
    changed = _git(
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ".",
        *(f":(exclude){path}" for path in _WRITTEN),
    )
    return f"{commit}-dirty" if changed else commit


def describe_machine() -> dict[str, Any]:
    """The machine, and the instruction set that the CPU kernel uses on it."""
    from fused_mlp.kernels import _cpu
    from fused_mlp.kernels.profile.machine import describe_machine as describe

    isa = os.environ.get("FUSED_MLP_ISA") or _cpu.usable_isas(True)[0]
    return {**describe(), "isa": isa}


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """The versions of the packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def describe_run(
    module: str, packages: Iterable[str] = (), versions: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The provenance of a result. `versions`: those of programs that are not packages of this interpreter."""
    return {
        "machine": describe_machine(),
        "versions": versions_of(("fused-mlp", *packages)) | dict(versions or {}),
        "commit": describe_commit(),
        "command": _command(module),
        "date": time.strftime("%Y-%m-%d"),
    }


def _command(module: str) -> str:
    isa = os.environ.get("FUSED_MLP_ISA")
    return (f"FUSED_MLP_ISA={isa} " if isa else "") + shlex.join(["python", "-m", module, *sys.argv[1:]])


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Beside its place, then renamed: an interrupted run leaves the last result as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".writing.tmp")
    partial.write_text(as_text(result) + "\n")
    partial.replace(path)


def h2load_version() -> str:
    done = subprocess.run(["h2load", "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip().partition("\n")[0].rpartition("/")[2]


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, cwd=ROOT)
    return done.stdout.strip() if done.returncode == 0 else ""


_WIDTH = 400
_DIGITS = 6


def as_text(value: object, indent: int = 0) -> str:
    """JSON for people who read differences: a record that fits a line has one, and numbers have six digits."""
    if isinstance(value, float):
        return json.dumps(float(f"{value:.{_DIGITS}g}"))
    if isinstance(value, dict):
        parts = [f"{json.dumps(str(key))}: {as_text(each, indent + 1)}" for key, each in value.items()]
        opening, closing = "{", "}"
    elif isinstance(value, (list, tuple)):
        parts = [as_text(each, indent + 1) for each in value]
        opening, closing = "[", "]"
    else:
        return json.dumps(value)
    line = f"{opening}{', '.join(parts)}{closing}"
    if len(line) + indent <= _WIDTH and "\n" not in line:
        return line
    margin = " " * (indent + 1)
    return f"{opening}\n{margin}" + f",\n{margin}".join(parts) + f"\n{' ' * indent}{closing}"
