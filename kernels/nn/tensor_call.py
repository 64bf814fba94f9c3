# SPDX-License-Identifier: Apache-2.0
"""Calls a kernel with torch tensors: the part of `Kernel.__call__` that needs torch, imported with the first tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fused_mlp.kernels.base import Kernel, check_array, check_out, check_record, check_rows, check_shape
from fused_mlp.kernels.errors import KernelInputError
from fused_mlp.models.importers.torch.tensors import to_tensor


def call_with_tensors(kernel: Kernel, x: Any, out: Any) -> Any:
    """`Kernel.__call__` where x or out is a tensor; the other may be an array."""
    source = _check(x, kernel.spec.in_features, "input")
    if kernel.spec.record:
        check_record(kernel.spec, source.detach().cpu().numpy())
    if out is None:
        target = torch.empty(
            (source.shape[0], kernel.spec.out_features), dtype=source.dtype, device=source.device
        )
    else:
        check_out(out)
        target = _check(out, kernel.spec.out_features, "out")
        check_rows(target.shape[0], source.shape[0])
    kernel.forward_tensors(source, target)
    return target if out is None else out


def forward_through_run(kernel: Kernel, x: Tensor, y: Tensor) -> None:
    source = x.detach().to("cpu", torch.float32).contiguous()
    result = np.empty((x.shape[0], kernel.spec.out_features), np.float32)
    kernel.run(source.numpy(), result)
    y.copy_(torch.from_numpy(result))


def _check(given: Any, width: int, name: str) -> Tensor:
    """The same memory as a tensor; a copy where torch has no tensors like it (read-only, negative strides)."""
    if not isinstance(given, Tensor):
        array = check_array(given, width, name)
        usable = array.flags.writeable and all(stride >= 0 for stride in array.strides)
        return to_tensor(array if usable else array.copy())
    check_shape(given.shape, width, name)
    if not given.is_floating_point():
        raise KernelInputError(f"{name}: expected a float dtype, got {given.dtype}")
    return given
