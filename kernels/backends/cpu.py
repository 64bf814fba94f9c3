# SPDX-License-Identifier: Apache-2.0
"""The fused CPU kernel: hands a model's weights to the compiled module `_cpu` and wraps what comes back.
Everything per call happens there, without the GIL; nothing here computes, and nothing here imports torch."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fused_mlp.kernels.backends.cpu_lowering import lower
from fused_mlp.kernels.base import Array, Float32, Kernel, KernelInfo
from fused_mlp.kernels.cores import usable_cores
from fused_mlp.kernels.errors import KernelInputError, KernelUnavailable
from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.weights.dtypes import Array as Weights
from fused_mlp.models.weights.quantization import Reduced

if TYPE_CHECKING:
    from torch import Tensor

try:
    from fused_mlp.kernels import _cpu
except ImportError:  # not built: the backend says so, everything else works
    _cpu = None  # type: ignore[assignment]

# Batch sizes up to which `describe()` looks for changes of strategy.
_DESCRIBED_ROWS = 512


class CpuKernel(Kernel):
    """One call of compiled code for the whole MLP. Weights of half-precision models are widened to float32 once,
    and computed in float32: closer to the exact result than eager in that dtype."""

    def __init__(self, mlp: Mlp, threads: int | None, isa: str | None = None) -> None:
        self._adopt(_build(mlp.spec, mlp.unreduced(), mlp.reduced, threads or usable_cores(), isa))
        self._has_ids = any(part.field.size is not None for part in mlp.spec.record)
        self._packer = _packer_of(mlp.spec)
        self._in_features = mlp.spec.in_features
        self._out_features = mlp.spec.out_features
        super().__init__(
            mlp.spec,
            KernelInfo(
                variant="fused",
                backend="cpu",
                device="cpu",
                strategy=_describe_strategies(self._compiled),
                isa=self._compiled.isa,
                dtype=mlp.precision if mlp.precision == "int8" else "float32",
                threads=self._compiled.threads,
            ),
        )

    def repacked(self, tensors: Mapping[str, Weights]) -> CpuKernel:
        """The same model with other tensors, unchecked: for weights that change while they are in use."""
        other = copy.copy(self)
        other._adopt(_build(self.spec, tensors, {}, self._compiled.threads, self._compiled.isa))
        return other

    def _adopt(self, compiled: _cpu.Kernel) -> None:
        self._compiled = compiled
        self._call_numpy = compiled.call_numpy
        self._run = compiled.run
        self._run_at = compiled.run_at

    @property
    def memory_bytes(self) -> int:
        return self._compiled.memory_bytes

    def run(self, x: Float32, y: Float32) -> str:
        if not self._run(x, y):
            raise KernelInputError(
                f"expected x (rows, {self._in_features}) and y (rows, {self._out_features}), "
                f"got {x.shape} and {y.shape}"
            )
        return self._compiled.strategy(len(x))

    def capsule(self) -> object:
        return self._compiled.capsule()

    def __call__(self, x: Array, out: Array | None = None) -> Array:  # noqa: PLR0911 - one for each fast path
        # The fast paths: float32, C-contiguous, on the CPU. Whatever does not fit falls through to the base
        # class, which converts it or says what is wrong with it.
        # So does an `out` that lies over x: the kernel writes rows while it still reads them.
        if out is not None and _overlap(x, out):
            return super().__call__(x, out)
        if type(x) is _NDARRAY:
            y = self._call_numpy(x, out)
            if y is not None:
                return y
        elif type(x) is dict and out is None and self._packer is not None:
            y = self._packer.call(self._compiled, x)
            if y is not None:
                return y
        elif isinstance(x, _TENSOR):
            rows = _rows_in_place(x, self._in_features)
            if rows >= 0 and (not self._has_ids or self._compiled.ids_fit_at(x.data_ptr(), rows)):
                # Addresses: DLPack costs 3 us a tensor, x.numpy() 1 us, this 0.1 us.
                if out is None:
                    # numpy allocates faster than torch.
                    result = _from_numpy(_empty((rows, self._out_features), _FLOAT32))
                    self._run_at(x.data_ptr(), rows, result.data_ptr())
                    return result  # type: ignore[no-any-return]
                if isinstance(out, _TENSOR) and _rows_in_place(out, self._out_features) == rows:
                    self._run_at(x.data_ptr(), rows, out.data_ptr())
                    return out  # type: ignore[no-any-return]
        elif _TENSOR == () and _learn_torch():
            return self(x, out)
        return super().__call__(x, out)


# One lookup instead of two on the fast paths. Those of torch are filled in with the first tensor; until then nothing is
# an instance of `()`.
_NDARRAY, _FLOAT32, _empty = np.ndarray, np.float32, np.empty
_TENSOR: Any = ()
_from_numpy: Any = None
_torch_float32: Any = None


def _learn_torch() -> bool:
    """False if torch is not imported (yet)."""
    global _TENSOR, _from_numpy, _torch_float32  # noqa: PLW0603
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "Tensor"):
        return False
    _from_numpy, _torch_float32 = torch.from_numpy, torch.float32
    _TENSOR = torch.Tensor
    return True


def _overlap(x: Array, out: Array) -> bool:
    """Whether two arrays of one kind may share memory; of different kinds, neither fast path takes them."""
    if isinstance(x, _NDARRAY) and isinstance(out, _NDARRAY):
        return np.may_share_memory(x, out)
    if isinstance(x, _TENSOR) and isinstance(out, _TENSOR) and x.is_cpu and out.is_cpu:
        start, other = x.data_ptr(), out.data_ptr()
        return bool(start < other + 4 * out.numel() and other < start + 4 * x.numel())
    return False


def _rows_in_place(tensor: Tensor, width: int) -> int:
    """The rows of a tensor that the kernel can use where it is, or -1."""
    if tensor.dtype is _torch_float32 and tensor.is_cpu and tensor.is_contiguous():
        shape = tensor.shape
        if len(shape) == 2 and shape[1] == width:
            return shape[0]
    return -1


def _packer_of(spec: MlpSpec) -> _cpu.Packer | None:
    """For inputs that only have to be copied; None for all others."""
    parts = spec.record
    simple = all(
        part.field.rules == ()
        and part.input.vocabulary is None
        and len(part.input.fields) == 1
        and (part.field.kind == "id" or part.input.dtype == "float32")
        for part in parts
    )
    if not parts or not simple:
        return None
    return _cpu.Packer([(part.input.name, part.input.width, part.field.size or 0) for part in parts])


def _build(
    spec: MlpSpec, tensors: Mapping[str, Weights], reduced: Reduced, threads: int, isa: str | None
) -> _cpu.Kernel:
    scratch, operations = lower(spec, tensors, reduced)
    tables = [
        (each["table"], each["scale"]) for kind, found in operations if kind == "lookups" for each in found
    ]
    limits = [
        (part.start, part.stop, part.field.size, part.input.ragged)
        for part in spec.record
        if part.field.size is not None
    ]
    try:
        ops = [_operation(kind, found) for kind, found in operations]
        return _cpu.Kernel(
            spec.in_features, spec.out_features, scratch, ops, threads, isa, limits, list(tables)
        )
    except (ValueError, MemoryError) as error:
        raise KernelUnavailable(f"CPU kernel: {error}") from error


def _operation(kind: str, found: Any) -> _cpu.Product | _cpu.Row | list[_cpu.Lookup]:
    if kind == "lookups":
        return [_cpu.Lookup(**each) for each in found]
    return _cpu.Product(**found) if kind == "product" else _cpu.Row(**found)


def _describe_strategies(compiled: _cpu.Kernel) -> str:
    """`gemv to 5 rows, row_block above`: each strategy with the largest batch that uses it."""
    *parts, (last, _) = compiled.strategies(_DESCRIBED_ROWS)
    ends = [f"{name} to {rows} row{'s' if rows > 1 else ''}" for name, rows in parts]
    return ", ".join([*ends, f"{last} above" if ends else last])


_MISSING = "fused_mlp.kernels._cpu is missing: install fused-mlp again, with a C++ compiler"


def unavailable(_: Mlp) -> str | None:
    return None if _cpu is not None else _MISSING
