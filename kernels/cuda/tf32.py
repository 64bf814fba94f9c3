# SPDX-License-Identifier: Apache-2.0
"""Whether float32 is multiplied in TF32 on a GPU. Torch's switch, for the whole process, is the only one there
is: eager layers know no other, and both variants of a model must multiply alike."""

from __future__ import annotations

import torch


def multiplies_in_tf32() -> bool:
    """However it was switched on: by us, or by any of torch's own ways."""
    switch = torch.backends.cuda.matmul
    try:
        return bool(switch.fp32_precision == "tf32")
    except AttributeError:  # before torch 2.9
        return bool(switch.allow_tf32)


def set_tf32(on: bool) -> None:
    """On GPUs only: `torch.set_float32_matmul_precision` would let a CPU round as well. Kernels that were
    compiled before keep their way to multiply, except eager ones."""
    torch.backends.cuda.matmul.allow_tf32 = on
