"""Whether torch sees a GPU, and which one a thread's calls go to."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from fused_mlp.kernels.errors import KernelUnavailable


def sees_gpu() -> bool:
    return torch.cuda.is_available()


def current_device(index: int) -> AbstractContextManager[object]:
    """Within it, `cuda` is that device."""
    count = torch.cuda.device_count()
    if index >= count:
        found = f"cuda:0 to cuda:{count - 1}" if count > 1 else ("cuda:0" if count else "no CUDA device")
        raise KernelUnavailable(f"device: got 'cuda:{index}', torch sees {found}")
    return torch.cuda.device(index)
