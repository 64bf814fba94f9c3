# SPDX-License-Identifier: Apache-2.0
"""A server built with a sanitizer, for tests of real processes. FUSED_MLP_SERVER_BUILD names either the folder that
`make sanitized-address` or `make sanitized-thread` fills, with the whole package in it, or a program: the stand-in of
service/csrc/front/tests. Python itself is not instrumented, so the sanitizer's library is loaded before it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

BUILD = os.environ.get("FUSED_MLP_SERVER_BUILD", "")
_IS_PROGRAM = Path(BUILD).is_file()
_SUPPRESSIONS = Path(__file__).with_name("tsan.supp")


def command() -> list[str]:
    """What runs `fused-mlp serve`."""
    if _IS_PROGRAM:
        return [BUILD]
    # Without site and the current folder, which would both find the build that is not sanitized.
    options = ["-S", "-P"] if BUILD else []
    return [sys.executable, *options, "-m", "fused_mlp.service.cli", "serve"]


def environment() -> dict[str, str]:
    options = {
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=66",  # Python and its packages leave much to the end of the process
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1:exitcode=66",
        "TSAN_OPTIONS": f"halt_on_error=0:exitcode=66:suppressions={_SUPPRESSIONS}",
    }
    if not BUILD or _IS_PROGRAM:
        return options if BUILD else {}
    kind = "tsan" if BUILD.endswith("thread") else "asan"
    # Exceptions pass through libstdc++, which must be there before the sanitizer looks for it.
    libraries = (_library(f"lib{kind}.so"), _library("libstdc++.so.6"))
    path = f"{Path(BUILD).resolve()}:{sysconfig.get_path('purelib')}"
    return options | {
        "LD_PRELOAD": " ".join(libraries),
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def findings(log: str) -> str:
    """What a sanitizer has reported, empty when nothing."""
    at = min((at for word in ("Sanitizer", "runtime error:") if (at := log.find(word)) >= 0), default=-1)
    return log[max(0, at - 200) : at + 6000] if BUILD and at >= 0 else ""


def _library(name: str) -> str:
    return subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True).strip()
