# SPDX-License-Identifier: Apache-2.0
"""The origin of the figures in a report: date, machine, version and command. Needs no kernel: `fused-mlp ab` also runs
where only the client is installed."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from importlib.metadata import version as package_version
from pathlib import Path


def provenance() -> dict[str, str]:
    """The provenance of this process, now."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": f"{processor()}, {cores} cores, {platform.system()} {platform.release()}",
        "version": f"fused-mlp {package_version('fused-mlp')}, Python {platform.python_version()}",
        "command": shlex.join(["fused-mlp", *sys.argv[1:]]),
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
