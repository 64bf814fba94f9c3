# SPDX-License-Identifier: Apache-2.0
"""The three ways to run an MLP that a profile compares, each as a call from Python on one batch. Eager and compile run
in float32, whatever the weights are kept in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from fused_mlp.kernels.backends.cpu_lowering import operation_names
from fused_mlp.kernels.backends.eager import fields_of
from fused_mlp.kernels.base import Device, Kernel
from fused_mlp.kernels.nn.fused_module import FusedMLP
from fused_mlp.kernels.nn.operator import NAME
from fused_mlp.kernels.profile.results import VariantName
from fused_mlp.kernels.registry import compile  # noqa: A004 - as everywhere
from fused_mlp.models import Mlp
from fused_mlp.models.importers.torch.writing import make_module
from fused_mlp.models.weights.mlp import expected_shapes

Forward = Callable[..., Any]  # of rows, or of the fields of records -> a tensor, or several


class ProfiledVariant:
    """A forward pass for one variant; building it may take seconds (torch.compile) or fail."""

    def __init__(self, name: VariantName, mlp: Mlp, device: str, threads: int) -> None:
        self.name = name
        self._device = device
        self.description = ""
        self._kernel: Kernel | None = None  # one that is called without a module
        self._spec = mlp.spec
        named = mlp.spec.inputs is not None
        # The weights of a torch module would be widened; and the kernel takes records, which no module of a user does.
        if name == "fused" and (is_narrow(mlp) or named):
            self._kernel = compile(mlp, device=cast("Device", device), threads=threads)
            self.description = str(self._kernel.describe())
            self._forward: Forward = _as_operator(self._kernel)
            return
        wide = mlp.rounded_to("float32")
        module = (make_module(wide, joined=True) if named else wide.to_torch()).to(device)
        if name == "fused":
            fused = FusedMLP.from_torch(module, threads=threads)
            self.description = str(fused.describe())
            self._forward = fused
        elif name == "compile":
            self._forward = _compiled(module)
        else:
            self._forward = module

    def strategy(self, batch: int) -> str:
        """The strategy of the fused kernel for that batch size; empty if the kernel has none."""
        compiled = getattr(self._fused_kernel(), "_compiled", None)
        return str(compiled.strategy(batch)) if compiled is not None else ""

    def operation_names(self, mlp: Mlp) -> list[str]:
        """The steps that the operations of the fused CPU kernel compute, in their order; empty for the others."""
        kernel, fused = self._fused_kernel(), self._forward
        if kernel is None or kernel.describe().backend != "cpu":
            return []
        names = operation_names(mlp.spec, mlp.unreduced(), mlp.reduced)
        if not isinstance(fused, FusedMLP):
            return names
        # The kernel's program was read from the module, which may name the same steps in other ways.
        spec = kernel.spec
        weights = (weight.detach().float().numpy() for weight in fused._weights())
        found = operation_names(spec, dict(zip(expected_shapes(spec), weights, strict=True)), {})
        return names if len(names) == len(found) else found

    def bind_kernel(self, x: Tensor) -> Callable[[], object] | None:
        """The fused kernel called with an array of rows, without torch: the cost in the engine. None for the other
        variants."""
        kernel, rows = self._fused_kernel(), x.cpu().numpy()
        return None if kernel is None else lambda: kernel(rows)

    def _fused_kernel(self) -> Kernel | None:
        return self._forward._kernel if isinstance(self._forward, FusedMLP) else self._kernel

    def bind(self, x: Tensor) -> Callable[[], object]:
        """x: (rows, in_features) on the device. Returns a synchronous call without arguments."""
        forward = self._forward
        given = [x] if self._kernel is not None else fields_of(self._spec, x, torch.float32)
        # torch.compile requires no_grad to freeze weights.
        mode: Any = torch.no_grad if self.name == "compile" else torch.inference_mode
        if self._device == "cuda":

            def call_cuda() -> object:
                with mode():
                    y = forward(*given)
                torch.cuda.synchronize()
                return y

            return call_cuda

        def call() -> object:
            with mode():
                return forward(*given)

        return call


def is_narrow(mlp: Mlp) -> bool:
    """Whether some of its weights are kept in fewer bits than float32 has."""
    return bool(mlp.reduced) or mlp.spec.dtype != "float32"


def _as_operator(kernel: Kernel) -> Forward:
    """In a trace, the call of the kernel is the operator that FusedMLP calls it in."""
    record: Any = torch._C._profiler._RecordFunctionFast

    def forward(x: Tensor) -> Tensor:
        if not torch.autograd.profiler._is_profiler_enabled:
            return kernel(x)
        with record(NAME, [x]):
            return kernel(x)

    return forward


def _compiled(module: nn.Module) -> Forward:
    """As in the kernel benchmark: frozen weights (packed for oneDNN), any batch size. Generated loops are visible to
    the profiler."""
    import torch._inductor.config as inductor  # noqa: PLC0415 - takes a second

    compiled: Any = torch.compile(module, dynamic=True)

    def forward(*given: Tensor) -> Any:
        return compiled(*given)

    def first(*given: Tensor) -> Any:
        with inductor.patch({"freezing": True, "cpp.enable_kernel_profile": True}):
            return forward(*given)

    return _CompileOnFirst(first, forward)


class _CompileOnFirst:
    """torch.compile compiles batch 1 and larger batches separately: both first calls need the settings."""

    def __init__(self, first: Forward, later: Forward) -> None:
        self._first, self._later = first, later
        self._seen: set[bool] = set()

    def __call__(self, *given: Tensor) -> Any:
        single = given[0].shape[0] == 1
        if single in self._seen:
            return self._later(*given)
        result = self._first(*given)
        self._seen.add(single)
        return result


def one_line(error: BaseException) -> str:
    """The first line of the error; torch.compile writes pages."""
    text = str(error).strip()
    line = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return line if len(line) <= 200 else f"{line[:197]}..."
