"""The three ways to run an MLP that a profile compares, each as a call from Python on one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fused_mlp.kernels.backends.cpu_lowering import operation_names
from fused_mlp.kernels.nn.fused_module import FusedMLP
from fused_mlp.kernels.profile.results import VariantName
from fused_mlp.models import Mlp
from fused_mlp.models.weights import expected_shapes

Forward = Callable[[Tensor], Any]  # a tensor, or several where the program has several outputs


class Variant:
    """A forward pass for one variant; building it may take seconds (torch.compile) or fail."""

    def __init__(self, name: VariantName, mlp: Mlp, device: str, threads: int) -> None:
        self.name = name
        self._device = device
        module = mlp.to_torch().to(device)
        self.description = ""
        if name == "fused":
            fused = FusedMLP.from_torch(module, threads=threads)
            self.description = str(fused.describe())
            self._forward: Forward = fused
        elif name == "compile":
            self._forward = _compiled(module)
        else:
            self._forward = module

    def strategy(self, batch: int) -> str:
        """The strategy of the fused kernel for that batch size; empty if the kernel has none."""
        kernel = getattr(self._forward, "_kernel", None)
        compiled = getattr(kernel, "_compiled", None)
        return str(compiled.strategy(batch)) if compiled is not None else ""

    def operation_names(self, mlp: Mlp) -> list[str]:
        """The steps that the operations of the fused CPU kernel compute, in their order; empty for the others."""
        fused = self._forward
        if (
            not isinstance(fused, FusedMLP)
            or fused._kernel is None
            or fused._kernel.describe().backend != "cpu"
        ):
            return []
        # The kernel's program was read from the module, which may name the same steps in other ways.
        spec = fused._kernel.spec
        weights = (weight.detach().float().numpy() for weight in fused._weights())
        found = operation_names(spec, dict(zip(expected_shapes(spec), weights, strict=True)), {})
        names = operation_names(mlp.spec, mlp.unreduced(), mlp.reduced)
        return names if len(names) == len(found) else found

    def bind_kernel(self, x: Tensor) -> Callable[[], object] | None:
        """The fused kernel called with an array of rows, without the torch module: the cost in the engine. None for the
        other variants."""
        if not isinstance(self._forward, FusedMLP) or self._forward._kernel is None:
            return None
        kernel, rows = self._forward._kernel, x.cpu().numpy()
        return lambda: kernel(rows)

    def bind(self, x: Tensor) -> Callable[[], object]:
        """x: (rows, in_features) on the device. Returns a synchronous call without arguments."""
        forward = self._forward
        # torch.compile requires no_grad to freeze weights.
        mode: Any = torch.no_grad if self.name == "compile" else torch.inference_mode
        if self._device == "cuda":

            def call_cuda() -> object:
                with mode():
                    y = forward(x)
                torch.cuda.synchronize()
                return y

            return call_cuda

        def call() -> object:
            with mode():
                return forward(x)

        return call


def _compiled(module: nn.Module) -> Forward:
    """As in the kernel benchmark: frozen weights (packed for oneDNN), any batch size. Generated loops are visible to
    the profiler."""
    import torch._inductor.config as inductor  # noqa: PLC0415 - takes a second

    compiled: Any = torch.compile(module, dynamic=True)

    def forward(x: Tensor) -> Any:
        return compiled(x)

    def first(x: Tensor) -> Any:
        with inductor.patch({"freezing": True, "cpp.enable_kernel_profile": True}):
            return forward(x)

    return _CompileOnFirst(first, forward)


class _CompileOnFirst:
    """torch.compile compiles batch 1 and larger batches separately: both first calls need the settings."""

    def __init__(self, first: Forward, later: Forward) -> None:
        self._first, self._later = first, later
        self._seen: set[bool] = set()

    def __call__(self, x: Tensor) -> Any:
        single = x.shape[0] == 1
        if single in self._seen:
            return self._later(x)
        result = self._first(x)
        self._seen.add(single)
        return result


def one_line(error: BaseException) -> str:
    """The first line of the error; torch.compile writes pages."""
    text = str(error).strip()
    line = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return line if len(line) <= 200 else f"{line[:197]}..."
