"""Whether torch sees a GPU, and whether it still answers. Imports nothing else of torch's: another thread may be
importing it."""

from __future__ import annotations

import torch

from fused_mlp.kernels.failure import report_failure


def sees_gpu() -> bool:
    return torch.cuda.is_available()


def is_lost(device: torch.device) -> bool:
    """Whether an error has made the device useless to this process until it ends: then every call fails."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def report_lost(device: object, error: Exception) -> None:
    report_failure(f"{device} is lost: {str(error).strip().partition(chr(10))[0]}")
