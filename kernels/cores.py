"""How many cores this process may keep busy: what the scheduler, the topology and the container allow."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


@cache
def usable_cores() -> int:
    """Physical cores in this process's affinity mask, no more than the container's CPU quota; at least 1.
    Hyper-threads count once: two of them share the multiplier that a kernel keeps busy."""
    affinity = getattr(os, "sched_getaffinity", None)
    cpus: set[int] = affinity(0) if affinity else set(range(os.cpu_count() or 1))
    cores = {_siblings(cpu) for cpu in cpus}
    return max(1, min(len(cores), _quota(len(cores))))


def _siblings(cpu: int) -> str:
    try:
        return (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota(otherwise: int) -> int:
    try:
        quota, period = _CGROUP_LIMIT.read_text().split()
        return otherwise if quota == "max" else int(quota) // int(period)
    except (OSError, ValueError):
        return otherwise
