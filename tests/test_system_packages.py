# SPDX-License-Identifier: Apache-2.0
"""`scripts/system-packages` says what a build lacks before anything is downloaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "system-packages"


def run_with(folder: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """On a machine that has only these programs (as shell scripts) beside the plain Unix ones, and no root."""
    for name, body in {"id": "echo 1000", **programs}.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    for name in ("sh", "sed", "tr", "grep", "dirname", "head"):
        (folder / name).symlink_to(f"/bin/{name}" if Path(f"/bin/{name}").exists() else f"/usr/bin/{name}")
    return subprocess.run(
        ["/bin/sh", str(SCRIPT), "serve"],
        env={"PATH": str(folder), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_compiler_is_one_line(tmp_path: Path) -> None:
    done = run_with(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("no C++ compiler (c++): ")
    assert done.stderr.count("\n") == 1


def test_a_compiler_without_the_headers_of_the_codec_is_one_line(tmp_path: Path) -> None:
    done = run_with(tmp_path, **{"c++": '[ "$1" = --version ] && echo c++ 12 || exit 1'})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "no protozero headers: install it, then run make again\n"


def test_without_nghttp2_the_build_goes_on_and_the_slower_front_is_announced(tmp_path: Path) -> None:
    has_others = '[ "$2" = libnghttp2 ] && exit 1; echo 3.0'
    done = run_with(tmp_path, **{"c++": "cat >/dev/null 2>&1; echo c++ 12", "pkg-config": has_others})
    assert done.returncode == 0
    assert done.stdout.startswith("no libnghttp2 here: the Python front will serve")
