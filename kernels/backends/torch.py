"""The fused variant in plain PyTorch, for places where no compiled kernel can be had: every GEMM goes into a
buffer that is kept per thread, and activations, gates and softmax work in place.
Not batch-invariant to the bit: MKL chooses its blocking, and so its order of summation, by batch size."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fused_mlp.kernels.base import Float32, Kernel, KernelInfo
from fused_mlp.models import LayerSpec, LayerWeights, Mlp, OutputActivation
from fused_mlp.models.dtypes import Array, widen

# Why addmm. Packed weights in oneDNN (mkldnn::_linear_pointwise, with the activation inside) measured up to 2.2 times
# as fast on one thread and 3.9 times on two, for layers 1024 wide at 2 to 32 rows, and a quarter as fast for layers
# 128 wide; but from 512 inputs on its largest error is 2 to 4 times that of eager, where a kernel may have twice.
# Summing in parts of 384 mends the error and loses the gain. torch._addmm_activation equals addmm and relu_.

# Buffers are kept for batches up to this many rows, and views of them for this many batch sizes.
KEPT_ROWS = 4096
KEPT_VIEWS = 256

_IN_PLACE: dict[OutputActivation, Callable[[Tensor, float], Tensor]] = {
    "identity": lambda x, _: x,
    "relu": lambda x, _: x.relu_(),
    "leaky_relu": functional.leaky_relu_,
    "gelu": lambda x, _: torch.ops.aten.gelu_(x),
    "gelu_tanh": lambda x, _: torch.ops.aten.gelu_(x, approximate="tanh"),
    "silu": lambda x, _: functional.silu(x, inplace=True),
    "tanh": lambda x, _: x.tanh_(),
    "sigmoid": lambda x, _: x.sigmoid_(),
    "elu": lambda x, _: functional.elu_(x),
    "softplus": lambda x, _: torch.ops.aten.softplus.out(x, out=x),
    "hardswish": lambda x, _: functional.hardswish(x, inplace=True),
    "relu6": lambda x, _: functional.hardtanh_(x, 0.0, 6.0),
    "mish": lambda x, _: functional.mish(x, inplace=True),
    "softmax": lambda x, _: torch.softmax(x, -1, out=x),
    "log_softmax": lambda x, _: torch.log_softmax(x, -1, out=x),
}


class _Layer:
    """activation(x W + b), or activation(x G + g) * (x W + b), then what follows. Weights widened to float32."""

    def __init__(
        self, spec: LayerSpec, weights: LayerWeights, output: tuple[OutputActivation, float] | None
    ) -> None:
        """`output`: the model's output activation and its slope, for the last layer."""
        self.out_features = spec.out_features
        self.gated = spec.gated
        self._linear = _widen(weights.weight, weights.bias)
        inner = spec.activation, spec.negative_slope
        if weights.gate_weight is not None:
            self._gate = _widen(weights.gate_weight, weights.gate_bias)
            self._gate_activation, self._gate_slope = _IN_PLACE[inner[0]], inner[1]
            inner = "identity", inner[1]
        name, self._slope = output or inner
        self._activation = _IN_PLACE[name]

    def run(self, x: Tensor, out: Tensor, gate_out: Tensor | None) -> None:
        """x: (rows, in) to out: (rows, out_features); gate_out, of the same shape, is scratch of a gated layer."""
        _linear_into(x, *self._linear, out)
        if gate_out is not None:
            _linear_into(x, *self._gate, gate_out)
            out.mul_(self._gate_activation(gate_out, self._gate_slope))
        self._activation(out, self._slope)


def _widen(weight: Array, bias: Array | None) -> tuple[Tensor, Tensor | None]:
    """(in, out) as a view of (out, in), which measured better than a copy in that order."""
    return torch.from_numpy(widen(weight)).t(), None if bias is None else torch.from_numpy(widen(bias))


def _linear_into(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    if bias is None:
        torch.mm(x, weight, out=out)
    else:
        torch.addmm(bias, x, weight, out=out)


# Per layer: where it writes (None for the last, which writes into the result), and a gated one's scratch.
_Views = tuple[tuple[Tensor | None, Tensor | None], ...]


class _Scratch(threading.local):
    """What each thread keeps between calls, so that many may run one kernel."""

    def __init__(self) -> None:
        self.buffers = [torch.empty(0)] * 3
        self.views: dict[int, _Views] = {}


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
        output = mlp.spec.output_activation, mlp.spec.output_negative_slope
        last = len(mlp.layers) - 1
        self._layers = tuple(
            _Layer(spec, weights, output if index == last else None)
            for index, (spec, weights) in enumerate(zip(mlp.spec.layers, mlp.layers, strict=True))
        )
        self._widest = max(layer.out_features for layer in self._layers)
        self._scratch = _Scratch()

    def run(self, x: Float32, y: Float32) -> str:
        self._compute(torch.from_numpy(x), torch.from_numpy(y))
        return self._info.strategy

    def forward_tensors(self, x: Tensor, y: Tensor) -> None:
        if all(t.dtype is torch.float32 and t.is_cpu and t.is_contiguous() for t in (x, y)):
            self._compute(x.detach(), y.detach())
        else:
            super().forward_tensors(x, y)

    def _compute(self, x: Tensor, y: Tensor) -> None:
        with torch.inference_mode():
            for layer, (out, gate_out) in zip(self._layers, self._views(len(x)), strict=True):
                out = y if out is None else out  # noqa: PLW2901
                layer.run(x, out, gate_out)
                x = out

    def _views(self, rows: int) -> _Views:
        """Making a view takes as long as a small layer: they are kept, per thread and batch size."""
        kept = self._scratch.views
        views = kept.get(rows)
        if views is None:
            views = self._make_views(rows)
            if rows <= KEPT_ROWS:
                if len(kept) >= KEPT_VIEWS:
                    kept.clear()
                kept[rows] = views
        return views

    def _make_views(self, rows: int) -> _Views:
        """A layer reads what the one before it wrote: two buffers take turns, a third holds gates."""
        last = len(self._layers) - 1
        return tuple(
            (
                self._view(index % 2, rows, layer.out_features) if index < last else None,
                self._view(2, rows, layer.out_features) if layer.gated else None,
            )
            for index, layer in enumerate(self._layers)
        )

    def _view(self, buffer: int, rows: int, width: int) -> Tensor:
        """(rows, width) at the start of one of this thread's buffers."""
        if rows > KEPT_ROWS:
            return torch.empty(rows, width)
        buffers = self._scratch.buffers
        needed = rows * self._widest
        if buffers[buffer].numel() < needed:
            self._scratch.views.clear()  # they would keep the smaller buffer alive
            buffers[buffer] = torch.empty(needed)
        return buffers[buffer][: rows * width].view(rows, width)
