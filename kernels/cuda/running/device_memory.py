# SPDX-License-Identifier: Apache-2.0
"""Free memory of GPUs, asked of NVML: CUDA's own answer needs a context on each, which takes hundreds of MiB there."""

from __future__ import annotations

import ctypes

import torch

LIBRARY = "libnvidia-ml.so.1"  # comes with the driver


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def free_bytes() -> list[int]:
    """Free bytes of each GPU that torch sees; by CUDA where NVML is missing or does not know one (a MIG instance)."""
    indices = range(torch.cuda.device_count())
    try:
        nvml = ctypes.CDLL(LIBRARY)
    except OSError:
        nvml = None
    if nvml is not None and nvml.nvmlInit_v2() == 0:
        try:
            found = [_ask(nvml, str(torch.cuda.get_device_properties(index).uuid)) for index in indices]
        finally:
            nvml.nvmlShutdown()
        if None not in found:
            return [free for free in found if free is not None]
    return [torch.cuda.mem_get_info(index)[0] for index in indices]


def _ask(nvml: ctypes.CDLL, uuid: str) -> int | None:
    device, memory = ctypes.c_void_p(), _Memory()
    if nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(device)):
        return None
    if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)):
        return None
    return int(memory.free)
