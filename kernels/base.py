# SPDX-License-Identifier: Apache-2.0
"""Every kernel: an immutable, re-entrant executable of one MLP for one variant on one device.
Owns the array boundary (numpy and torch in and out); knows nothing of how a kernel computes. Imports no torch: a
tensor can only come from a process that has imported it."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fused_mlp.kernels.errors import KernelInputError
from fused_mlp.models import MlpSpec
from fused_mlp.models.program.inputs import InputError, check_ids
from fused_mlp.variant import Variant

if TYPE_CHECKING:
    import torch

Device = Literal["cpu", "cuda"]
Float32 = NDArray[np.float32]
Array = TypeVar("Array", "torch.Tensor", Float32)

_FLOAT_DTYPES = ("float16", "float32", "float64", "bfloat16")


@dataclass(frozen=True)
class KernelInfo:
    """The answer of `Kernel.describe`; prints as one line.

    Attributes:
        variant: "fused" or "unfused".
        backend: What runs it: "cpu", "triton", "cublas", "torch", "eager".
        device: "cpu", or as torch names a GPU: "cuda:0".
        strategy: How small and large batches run.
        isa: The instruction set, or the architecture of the GPU.
        dtype: In what it computes.
        threads: Of one call.
        reason: Why this backend was chosen, and why others were not.
    """

    variant: Variant
    backend: str
    device: str
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
    """A compiled MLP: an immutable executable of one model, for one variant on one device. Threads may share it.

    Made by `fused_mlp.compile`. `spec` is that of its model.
    """

    def __init__(self, spec: MlpSpec, info: KernelInfo) -> None:
        self.spec = spec
        self._info = info

    def describe(self) -> KernelInfo:
        """Which backend runs it, where, with how many threads, and why this one was chosen."""
        return self._info

    @property
    def memory_bytes(self) -> int:
        """The approximate size of its weights."""
        return self.spec.parameters * (2 if self._info.dtype in ("float16", "bfloat16") else 4)

    @abstractmethod
    def run(self, x: Float32, y: Float32) -> str:
        """x: (rows, in_features), y: (rows, out_features), both float32 and C-contiguous; writes y and
        returns the strategy used. The engine calls this once per batch, from any of its threads."""

    def capsule(self) -> object | None:
        """The C interface of `csrc/kernel_api.h`, for kernels that run without Python; else None."""
        return None

    def __call__(self, x: Array, out: Array | None = None) -> Array:
        """Run the model on rows.

        Args:
            x: (rows, in_features), a torch tensor or a numpy array of floats. Of a model with several inputs: a dict of
                arrays by name, a tuple of them in order, or what `spec.pack` made of those.
            out: Where to write the answer, of the kind, dtype and device of `x`. Default: a new array.

        Returns:
            (rows, out_features), of the kind, dtype and device of `x`. Several outputs stand side by side:
            `kernel.spec.columns(name)` says where.

        Raises:
            KernelInputError: The array has the wrong shape or dtype.
            KernelError: The kernel failed while running.
        """
        if isinstance(x, Mapping) or (self.spec.inputs is not None and isinstance(x, (list, tuple))):
            return self._call_with_inputs(x, out)  # type: ignore[no-any-return]
        if is_tensor(x) or is_tensor(out):
            from fused_mlp.kernels.nn.tensor_call import call_with_tensors  # noqa: PLC0415 - brings torch

            return call_with_tensors(self, x, out)  # type: ignore[no-any-return]
        source = check_array(x, self.spec.in_features, "input")
        check_record(self.spec, source)
        shape = (source.shape[0], self.spec.out_features)
        if out is not None:
            check_out(out)
            target = check_array(out, self.spec.out_features, "out")
            check_rows(target.shape[0], source.shape[0])
        result = np.empty(shape, np.float32)
        # float16 does not hold all that float32 holds: infinity, as in torch.
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(source, np.float32)
            # torch knows no read-only tensors, and warns.
            self.run(rows if rows.flags.writeable else rows.copy(), result)
            if out is None:
                return result.astype(source.dtype, copy=False)  # type: ignore[return-value]
            target[...] = result
        return out

    def _call_with_inputs(self, given: Any, out: Any) -> Any:
        try:
            rows = self.spec.pack(given)
        except InputError as error:
            raise KernelInputError(str(error)) from None
        values = given.values() if isinstance(given, Mapping) else given
        if out is None and any(is_tensor(value) for value in values):
            result = np.empty((len(rows), self.spec.out_features), np.float32)
            self.run(rows, result)
            return sys.modules["torch"].from_numpy(result)
        return self(rows, out)

    def forward_tensors(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """x: (rows, in_features), y: (rows, out_features), of any float dtype, device and strides. Kernels that
        compute with torch do better than this way through `run`."""
        from fused_mlp.kernels.nn.tensor_call import forward_through_run  # noqa: PLC0415 - brings torch

        forward_through_run(self, x, y)


def is_tensor(x: object) -> bool:
    # None, too, while another thread imports torch.
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(x, tensor)


def check_array(array: object, width: int, name: str) -> NDArray[Any]:
    """The array, if it is (rows, width) of floats."""
    if not isinstance(array, np.ndarray):
        raise KernelInputError(
            f"{name}: expected a torch tensor or a numpy array, got {type(array).__name__}"
        )
    if array.dtype.name not in _FLOAT_DTYPES or not array.dtype.isnative:
        raise KernelInputError(f"{name}: expected a float dtype, got {array.dtype}")
    check_shape(array.shape, width, name)
    return array


def check_record(spec: MlpSpec, rows: NDArray[Any]) -> None:
    """That packed rows with ids are as `spec.pack` makes them: kernels do not check ids."""
    if not any(part.field.size is not None for part in spec.record):
        return
    if rows.dtype != np.float32:
        raise KernelInputError(
            f"input: expected float32 for rows with ids, got {rows.dtype}; spec.pack makes them"
        )
    try:
        check_ids(spec.record, rows)
    except InputError as error:
        raise KernelInputError(str(error)) from None


def check_shape(shape: tuple[int, ...], width: int, name: str) -> None:
    if len(shape) != 2 or shape[1] != width:
        raise KernelInputError(f"{name}: expected shape (rows, {width}), got {tuple(shape)}")


def check_out(out: object) -> None:
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise KernelInputError("out: expected an array that can be written to")


def check_rows(rows: int, expected: int) -> None:
    if rows != expected:
        raise KernelInputError(f"out has {rows} rows, the input {expected}")
