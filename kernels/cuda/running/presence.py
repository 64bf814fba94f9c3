"""Whether torch sees a GPU, which one a thread's calls go to, and whether it still answers."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from fused_mlp.kernels.cuda.running import native
from fused_mlp.kernels.errors import KernelUnavailable
from fused_mlp.kernels.failure import report_failure


def sees_gpu() -> bool:
    return torch.cuda.is_available()


def device_count() -> int:
    """The GPUs that torch sees, or, where it sees none, those of NVIDIA's driver."""
    return torch.cuda.device_count() or native.count()


def current_device(index: int) -> AbstractContextManager[object]:
    """Within it, `cuda` is that device."""
    count = torch.cuda.device_count()
    if not count and not native.unavailable():
        return native.use(index)
    if index >= count:
        found = f"cuda:0 to cuda:{count - 1}" if count > 1 else ("cuda:0" if count else "no CUDA device")
        raise KernelUnavailable(f"device: got 'cuda:{index}', torch sees {found}")
    return torch.cuda.device(index)


def is_lost(device: torch.device) -> bool:
    """Whether an error has made the device useless to this process until it ends: then every call fails."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def report_lost(device: object, error: Exception) -> None:
    report_failure(f"{device} is lost: {str(error).strip().partition(chr(10))[0]}")
