# SPDX-License-Identifier: Apache-2.0
"""How many GPUs there are, and which one a thread builds kernels for: torch's, or, where it sees none, the driver's."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from fused_mlp.kernels.cuda.running import native
from fused_mlp.kernels.errors import KernelUnavailable


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
