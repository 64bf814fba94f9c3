"""What every kernel is: an immutable, re-entrant executable of one MLP for one variant on one device.
Owns the array boundary (torch and numpy in and out); knows nothing of how a kernel computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fused_mlp.kernels.errors import KernelInputError
from fused_mlp.models import MlpSpec

Variant = Literal["fused", "unfused"]
Device = Literal["cpu", "cuda"]
Float32 = NDArray[np.float32]
Array = TypeVar("Array", torch.Tensor, Float32)


@dataclass(frozen=True)
class KernelInfo:
    """What `describe()` says. `strategy` names how small and large batches run; `reason` says why this
    backend was taken, and what was passed over."""

    variant: Variant
    backend: str
    device: Device
    strategy: str
    isa: str
    dtype: str
    threads: int
    reason: str = ""

    def __str__(self) -> str:
        text = (
            f"{self.variant}: {self.backend} on {self.device} ({self.isa}, {self.dtype}, "
            f"{self.threads} thread{'s' if self.threads != 1 else ''}), strategy {self.strategy}"
        )
        return f"{text}; {self.reason}" if self.reason else text


class Kernel(ABC):
    """A compiled MLP. Call it with (rows, in_features); it answers (rows, out_features)."""

    def __init__(self, spec: MlpSpec, info: KernelInfo) -> None:
        self.spec = spec
        self._info = info

    def describe(self) -> KernelInfo:
        return self._info

    @abstractmethod
    def run(self, x: Float32, y: Float32) -> str:
        """x: (rows, in_features), y: (rows, out_features), both float32 and C-contiguous; writes y and
        returns the strategy used. The engine calls this once per batch, from any of its threads."""

    def capsule(self) -> object | None:
        """The C interface of `csrc/kernel_api.h`, for kernels that run without Python; else None."""
        return None

    def __call__(self, x: Array, out: Array | None = None) -> Array:
        """x: (rows, in_features), a torch tensor or numpy array. The result is of the same kind, dtype and
        device as x; `out`, when given, must match it and is returned."""
        source = _as_tensor(x, "input")
        self._check(source, self.spec.in_features, "input")
        shape = (source.shape[0], self.spec.out_features)
        if out is None:
            target = torch.empty(shape, dtype=source.dtype, device=source.device)
        else:
            if isinstance(out, np.ndarray) and not out.flags.writeable:
                raise KernelInputError("out: expected an array that can be written to")
            target = _as_tensor(out, "out")
            self._check(target, self.spec.out_features, "out")
            if target.shape[0] != source.shape[0]:
                raise KernelInputError(f"out has {target.shape[0]} rows, the input {source.shape[0]}")
        self._forward(source, target)
        if out is not None:
            return out
        if isinstance(x, torch.Tensor):
            return target
        return target.numpy()

    def _forward(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Through `run`, whatever the dtype, device and strides of x and y."""
        source = x.detach().to("cpu", torch.float32).contiguous()
        result = np.empty((x.shape[0], self.spec.out_features), np.float32)
        self.run(source.numpy(), result)
        y.copy_(torch.from_numpy(result))

    def _check(self, tensor: torch.Tensor, width: int, name: str) -> None:
        if tensor.ndim != 2 or tensor.shape[1] != width:
            raise KernelInputError(f"{name}: expected shape (rows, {width}), got {tuple(tensor.shape)}")
        if not tensor.is_floating_point():
            raise KernelInputError(f"{name}: expected a float dtype, got {tensor.dtype}")


def _as_tensor(array: torch.Tensor | Float32, name: str) -> torch.Tensor:
    """The same memory as a tensor; a copy where torch has no tensors like it (read-only, negative strides)."""
    if isinstance(array, torch.Tensor):
        return array
    if not isinstance(array, np.ndarray):
        raise KernelInputError(
            f"{name}: expected a torch tensor or a numpy array, got {type(array).__name__}"
        )
    try:
        usable = array.flags.writeable and all(stride >= 0 for stride in array.strides)
        return torch.from_numpy(array if usable else array.copy())
    except (TypeError, ValueError):  # no such dtype, or another byte order
        raise KernelInputError(f"{name}: expected a float dtype, got {array.dtype}") from None
