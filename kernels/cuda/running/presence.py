"""Whether torch sees a GPU, which one a thread's calls go to, and whether it still answers."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from fused_mlp.kernels.errors import KernelUnavailable
from fused_mlp.kernels.failure import report_failure


def sees_gpu() -> bool:
    return torch.cuda.is_available()


def current_device(index: int) -> AbstractContextManager[object]:
    """Within it, `cuda` is that device."""
    count = torch.cuda.device_count()
    if index >= count:
        found = f"cuda:0 to cuda:{count - 1}" if count > 1 else ("cuda:0" if count else "no CUDA device")
        raise KernelUnavailable(f"device: got 'cuda:{index}', torch sees {found}")
    return torch.cuda.device(index)


def free_bytes() -> list[int]:
    """Of each GPU."""
    return [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]


def is_lost(device: torch.device) -> bool:
    """Whether an error has made the device useless to this process until it ends: then every call fails."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def report_lost(device: object, error: Exception) -> None:
    report_failure(f"{device} is lost: {str(error).strip().partition(chr(10))[0]}")
