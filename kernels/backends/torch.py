# SPDX-License-Identifier: Apache-2.0
"""The fused variant in plain PyTorch, for places where no compiled kernel can be had: every GEMM goes into a
buffer that is kept per thread, and functions, norms, gates and softmax work in place where nothing reads their input
later. Not batch-invariant to the bit: MKL chooses its blocking, and so its order of summation, by batch size."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fused_mlp.kernels.backends.torch_buffers import Y, lay_out
from fused_mlp.kernels.base import Float32, Kernel, KernelInfo
from fused_mlp.models import Mlp
from fused_mlp.models.dtypes import widen
from fused_mlp.models.formula import PARAMETERS, Formula
from fused_mlp.models.importers.torch.formulas import apply
from fused_mlp.models.importers.torch.modules import normalize
from fused_mlp.models.spec import Step

# Why addmm. Packed weights in oneDNN (mkldnn::_linear_pointwise, with the activation inside) measured up to 2.2 times
# as fast on one thread and 3.9 times on two, for layers 1024 wide at 2 to 32 rows, and a quarter as fast for layers
# 128 wide; but from 512 inputs on its largest error is 2 to 4 times that of eager, where a kernel may have twice.
# Summing in parts of 384 mends the error and loses the gain. torch._addmm_activation equals addmm and relu_.

# Buffers are kept for batches up to this many rows, and views of them for this many batch sizes.
KEPT_ROWS = 4096
KEPT_VIEWS = 256

# (values, parameters of the function ...): those that torch computes in place. The others make a new tensor.
_IN_PLACE: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(Tensor, f"{name}_") for name in PARAMETERS if hasattr(Tensor, f"{name}_")},
    "leaky_relu": functional.leaky_relu_,
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": lambda x: torch.ops.aten.gelu_(x, approximate="tanh"),
    "silu": lambda x: functional.silu(x, inplace=True),
    "elu": functional.elu_,
    "softplus": lambda x, beta, threshold: torch.ops.aten.softplus.out(x, beta, threshold, out=x),
    "hardswish": lambda x: functional.hardswish(x, inplace=True),
    "mish": lambda x: functional.mish(x, inplace=True),
}
_COMBINATIONS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}

_Action = Callable[[list[Tensor]], object]  # what a step does with the tensors of all places


def _function(formula: Formula) -> Callable[[Tensor], object]:
    """In place."""
    if formula.is_identity:
        return lambda x: x
    if formula.simple is not None:
        name, numbers = formula.simple
        compute = _IN_PLACE[name]
        return lambda x: compute(x, *numbers)
    return lambda x: x.copy_(apply(formula, x))


def _linear_into(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    if bias is None:
        torch.mm(x, weight, out=out)
    else:
        torch.addmm(bias, x, weight, out=out)


class _Actions:
    """Makes the action of each step from the places of its values. Weights are widened to float32."""

    def __init__(self, mlp: Mlp) -> None:
        self._mlp = mlp
        self.layout = lay_out(mlp.spec)
        self.all = [self._of(step) for step in mlp.spec.steps]
        self.all += [self._copy(name, columns) for name, columns in self.layout.copied]

    def _of(self, step: Step) -> _Action:  # noqa: PLR0911 - a table of steps
        places, out = self.layout.places, self.layout.places[step.name]
        sources = [places[source] for source in step.sources]
        at = sources[0]
        match step.op:
            case "linear":
                return self._linear(step, at, out)
            case "gated":
                gate = self.layout.scratch[step.name]
                up, opened = self._linear(step, at, out), self._linear(step, at, gate, "gate_")
                activate = _function(step.formula)

                def run_gated(t: list[Tensor]) -> None:
                    up(t)
                    opened(t)
                    activate(t[gate])
                    t[out].mul_(t[gate])

                return run_gated
            case "slice":
                start, stop = step.start, step.stop
                return lambda t: t.__setitem__(out, t[at][:, start:stop])
            case "concat":
                return lambda t: torch.cat([t[each] for each in sources], 1, out=t[out])
            case "softmax":
                return lambda t: torch.softmax(t[at], -1, out=t[out])
            case "log_softmax":
                return lambda t: torch.log_softmax(t[at], -1, out=t[out])
            case "elementwise":
                compute = _function(step.formula)
                if at == out:
                    return lambda t: compute(t[out])
                return lambda t: compute(t[out].copy_(t[at]))
            case "norm":
                kind, eps, weight, bias = (
                    step.kind,
                    step.eps,
                    self._tensor(step, "weight"),
                    self._tensor(step, "bias"),
                )
                return lambda t: t[out].copy_(normalize(t[at], kind, eps, weight, bias))
            case "affine":
                scale, shift = self._tensor(step, "weight"), self._tensor(step, "bias")
                return lambda t: t[out].copy_(_scaled(t[at], scale, shift))
        combine, (left, right) = _COMBINATIONS[step.op], sources
        return lambda t: combine(t[left], t[right], out=t[out])

    def _linear(self, step: Step, source: int, out: int, half: str = "") -> _Action:
        weight, bias = self._tensor(step, f"{half}weight"), self._tensor(step, f"{half}bias")
        assert weight is not None
        matrix = weight.t()  # (in, out) as a view of (out, in) measured better than a copy in that order
        return lambda t: _linear_into(t[source], matrix, bias, t[out])

    def _tensor(self, step: Step, name: str) -> Tensor | None:
        found = self._mlp.tensor(step, name)
        return None if found is None else torch.from_numpy(widen(found))

    def _copy(self, name: str, columns: slice) -> _Action:
        place = self.layout.places[name]
        return lambda t: t[Y][:, columns].copy_(t[place])


def _scaled(x: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
    x = x if scale is None else x * scale
    return x if shift is None else x + shift


class _Scratch(threading.local):
    """What each thread keeps between calls, so that many may run one kernel."""

    def __init__(self, buffers: int) -> None:
        self.buffers = [torch.empty(0)] * buffers
        self.views: dict[int, list[Tensor]] = {}


class TorchKernel(Kernel):
    """Computes in float32 whatever the model's dtype, as the compiled kernel does: closer to the exact result
    than eager in half precision, and faster on CPUs that have no arithmetic for it."""

    def __init__(self, mlp: Mlp, threads: int | None) -> None:
        # torch has one intra-op pool for the whole process; the count is its, not ours.
        count = torch.get_num_threads()
        super().__init__(
            mlp.spec,
            KernelInfo(
                variant="fused",
                backend="torch",
                device="cpu",
                strategy="in_place",
                isa=torch.backends.cpu.get_cpu_capability(),
                dtype="float32",
                threads=count,
                reason=""
                if threads in (None, count)
                else f"torch's own pool has {count} threads, not {threads}",
            ),
        )
        actions = _Actions(mlp)
        self._actions = actions.all
        self._layout = actions.layout
        self._scratch = _Scratch(len(self._layout.widths))

    def run(self, x: Float32, y: Float32) -> str:
        self._compute(torch.from_numpy(x), torch.from_numpy(y))
        return self._info.strategy

    def forward_tensors(self, x: Tensor, y: Tensor) -> None:
        usable = all(t.dtype is torch.float32 and t.is_cpu and t.is_contiguous() for t in (x, y))
        # Steps write into y while others still read x.
        if usable and x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr():
            self._compute(x.detach(), y.detach())
        else:
            super().forward_tensors(x, y)

    def _compute(self, x: Tensor, y: Tensor) -> None:
        with torch.inference_mode():
            tensors = [x, y, *self._views(len(x))]
            for action in self._actions:
                action(tensors)

    def _views(self, rows: int) -> list[Tensor]:
        """Of all places but x and y. Making a view takes as long as a small layer: they are kept, per thread and batch
        size."""
        if rows > KEPT_ROWS:
            return self._make_views(rows, [torch.empty(rows * width) for width in self._layout.widths])
        kept = self._scratch.views
        views = kept.get(rows)
        if views is None:
            buffers = self._scratch.buffers
            for index, width in enumerate(self._layout.widths):
                if buffers[index].numel() < rows * width:
                    kept.clear()  # they would keep the smaller buffer alive
                    buffers[index] = torch.empty(rows * width)
            views = self._make_views(rows, buffers)
            if len(kept) >= KEPT_VIEWS:
                kept.clear()
            kept[rows] = views
        return views

    def _make_views(self, rows: int, buffers: list[Tensor]) -> list[Tensor]:
        """(rows, width) at the start of a buffer. A part of another place is made by its own step."""
        return [
            _NOTHING if place is None else buffers[place[0]][: rows * place[1]].view(rows, place[1])
            for place in self._layout.buffers
        ]


_NOTHING = torch.empty(0)
