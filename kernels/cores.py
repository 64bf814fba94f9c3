# SPDX-License-Identifier: Apache-2.0
"""How many cores this process may keep busy: what the scheduler, the topology and the container allow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# The most cores to use. A pod gets its CPU request here: without a limit it has no quota and would use the whole node.
VARIABLE = "FUSED_MLP_CORES"
_CPUS = Path("/sys/devices/system/cpu")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


@cache
def usable_cores() -> int:
    """Physical cores in this process's affinity mask, no more than the container's CPU quota and FUSED_MLP_CORES; at
    least 1. Hyper-threads count once: two of them share the multiplier that a kernel keeps busy. Raises ValueError."""
    affinity = getattr(os, "sched_getaffinity", None)
    cpus: set[int] = affinity(0) if affinity else set(range(os.cpu_count() or 1))
    cores = len({_siblings(cpu) for cpu in cpus})
    return max(1, min([cores, *_wanted(), *_quotas()]))


def _siblings(cpu: int) -> str:
    try:
        return (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _wanted() -> list[int]:
    text = os.environ.get(VARIABLE, "")
    if text and not (text.isascii() and text.isdecimal()):
        raise ValueError(
            f"{VARIABLE}={text!r}: expected a whole number of cores, or 0 for all that are usable"
        )
    # 0: what Kubernetes puts in for a container without a CPU request.
    return [int(text)] if text.strip("0") else []


def _quotas() -> Iterator[int]:
    """The quotas of this process's control group and its parents, in version 2 (cpu.max) and 1 (cpu.cfs_quota_us)."""
    try:
        lines = _OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = next((r for r in (_CGROUPS / controllers, _CGROUPS / "cpu") if r.is_dir()), _CGROUPS)
        # In a container the path may be the host's, which does not exist here: the root is then the container's own.
        inner = Path(path.lstrip("/"))
        for group in (inner, *inner.parents):
            if quota := _quota(root / group):
                yield quota


def _quota(group: Path) -> int | None:
    """Whole cores, rounded down but at least 1; None without a limit."""
    for name in ("cpu.max", "cpu.cfs_quota_us"):
        try:
            words = (group / name).read_text().split()
            period = words[1] if len(words) > 1 else (group / "cpu.cfs_period_us").read_text()
            if words[0] not in ("max", "-1"):
                return max(1, int(words[0]) // int(period))
        except (OSError, ValueError, IndexError):
            continue
    return None
