"""The fused variant in plain PyTorch, for places where no compiled kernel can be had: GEMMs into buffers that are
kept per thread, activations in place or inside oneDNN, gates folded into the second GEMM.
Not batch-invariant to the bit: MKL and oneDNN choose their blocking, and so their summation order, by batch size."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.base import Float32, Kernel, KernelInfo
from kernels.registry import Backend, register
from models import LayerSpec, LayerWeights, Mlp, OutputActivation

# Where oneDNN with packed weights beats MKL's addmm. Measured on AVX2, whole models, us, addmm / packed, 1 thread:
# 64-128-128-10 at 128 rows 111 / 145, 512-512-512 at 3 rows 149 / 97, 256-1024-1024-256 at 8 rows 684 / 420,
# 1024-4096-1024 at 128 rows 30246 / 27350, and at 1 row on 2 threads 1839 / 471. A oneDNN call costs some 15 us
# more than addmm, which in turn repacks a large weight in every call.
PACKED_FROM_MACS = 4_000_000
LARGE_WEIGHT = 200_000
LARGE_WEIGHT_PACKED_FROM_MACS = 750_000
# Scratch and views are kept per thread for batches up to this many rows; larger ones bring their own.
KEPT_ROWS = 4096
KEPT_PLANS = 256

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
# What oneDNN computes inside its GEMM: attribute and algorithm. The others follow in place; tanh among them, where
# oneDNN's error is more than twice that of eager.
_INSIDE_ONEDNN: dict[OutputActivation, tuple[str, str]] = {
    "identity": ("none", ""),
    "relu": ("relu", ""),
    "leaky_relu": ("leaky_relu", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
    "sigmoid": ("sigmoid", ""),
    "hardswish": ("hardswish", ""),
    "relu6": ("hardtanh", ""),
}


class _Weight:
    """One matrix (out, in) with its bias, as addmm and as oneDNN want it. Widened to float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.size = weight.numel()
        self.columns = weight.float().t()
        self.bias = None if bias is None else bias.float()
        self.packed: Tensor | None = None
        if _has_onednn() and self.size * KEPT_ROWS >= PACKED_FROM_MACS:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.float(), None)

    def runs_packed(self, rows: int) -> bool:
        large = rows > 1 and self.size >= LARGE_WEIGHT
        least = LARGE_WEIGHT_PACKED_FROM_MACS if large else PACKED_FROM_MACS
        return self.packed is not None and rows * self.size >= least

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        if self.bias is None:
            return torch.mm(x, self.columns, out=out)
        return torch.addmm(self.bias, x, self.columns, out=out)


class _Layer:
    """activation(x W + b), or activation(x G + g) * (x W + b)."""

    def __init__(
        self, spec: LayerSpec, weights: LayerWeights, activation: OutputActivation, slope: float
    ) -> None:
        self.out_features = spec.out_features
        self.weight = _Weight(weights.weight, weights.bias)
        self.gate: _Weight | None = None
        # Of a gated layer, what follows the product: something only when it is the last.
        self._after, self._after_slope = activation, slope
        if weights.gate_weight is not None:
            self.gate = _Weight(weights.gate_weight, weights.gate_bias)
            self._gate_activation, self._gate_slope = spec.activation, spec.negative_slope

    def run_addmm(self, x: Tensor, out: Tensor, gate_out: Tensor | None) -> Tensor:
        """x: (rows, in) to out: (rows, out_features)."""
        self.weight.into(x, out)
        if self.gate is not None and gate_out is not None:
            self.gate.into(x, gate_out)
            out.mul_(_IN_PLACE[self._gate_activation](gate_out, self._gate_slope))
        return _IN_PLACE[self._after](out, self._after_slope)

    def run_packed(self, x: Tensor) -> Tensor:
        """The same into a tensor of oneDNN's."""
        if self.gate is None:
            return _linear_pointwise(x, self.weight, self._after, self._after_slope)
        gate = _linear_pointwise(x, self.gate, self._gate_activation, self._gate_slope)
        product: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            x, gate, self.weight.packed, self.weight.bias, "mul"
        )
        return _IN_PLACE[self._after](product, self._after_slope)


def _linear_pointwise(x: Tensor, weight: _Weight, activation: OutputActivation, slope: float) -> Tensor:
    attribute, algorithm = _INSIDE_ONEDNN.get(activation, ("none", ""))
    scalars = [slope] if activation == "leaky_relu" else [0.0, 6.0] if activation == "relu6" else []
    result: Tensor = torch.ops.mkldnn._linear_pointwise(
        x, weight.packed, weight.bias, attribute, scalars, algorithm
    )
    return result if activation in _INSIDE_ONEDNN else _IN_PLACE[activation](result, slope)


@dataclass(frozen=True)
class _Plan:
    """How a batch of so many rows runs, with views of a thread's scratch to run it in."""

    rows: int  # with padding
    strategy: str
    packed: tuple[bool, ...]
    outputs: tuple[Tensor | None, ...]
    gates: tuple[Tensor | None, ...]
    padded_input: Tensor | None


class _Scratch(threading.local):
    """What each thread keeps between calls, so that many may run one kernel."""

    def __init__(self) -> None:
        self.buffers = [torch.empty(0)] * 3
        self.plans: dict[int, _Plan] = {}


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
                strategy="addmm, onednn for large layers and batches" if _has_onednn() else "addmm",
                isa=torch.backends.cpu.get_cpu_capability(),
                dtype="float32",
                threads=count,
                reason=""
                if threads in (None, count)
                else f"torch's own pool has {count} threads, not {threads}",
            ),
        )
        last = len(mlp.layers) - 1
        self._layers = tuple(
            _Layer(spec, weights, *_following(mlp, spec, index == last))
            for index, (spec, weights) in enumerate(zip(mlp.spec.layers, mlp.layers, strict=True))
        )
        self._widest = max(layer.out_features for layer in self._layers)
        self._scratch = _Scratch()

    def run(self, x: Float32, y: Float32) -> str:
        return self._compute(torch.from_numpy(x), torch.from_numpy(y))

    def _forward(self, x: Tensor, y: Tensor) -> None:
        if all(t.dtype is torch.float32 and t.is_cpu and t.is_contiguous() for t in (x, y)):
            self._compute(x.detach(), y.detach())
        else:
            super()._forward(x, y)

    def _compute(self, x: Tensor, y: Tensor) -> str:
        rows, last = len(x), len(self._layers) - 1
        if rows == 0:
            return "addmm"
        with torch.inference_mode():
            plan = self._plan(rows)
            hidden = x
            if plan.padded_input is not None:
                plan.padded_input[:rows] = x
                hidden = plan.padded_input
            for index, layer in enumerate(self._layers):
                if plan.packed[index]:
                    hidden = layer.run_packed(hidden)
                    continue
                out = y if index == last and plan.rows == rows else plan.outputs[index]
                assert out is not None
                hidden = layer.run_addmm(hidden, out, plan.gates[index])
            if hidden is not y:
                y.copy_(hidden[:rows] if plan.rows != rows else hidden)
        return plan.strategy

    def _plan(self, rows: int) -> _Plan:
        plans = self._scratch.plans
        plan = plans.get(rows)
        if plan is None:
            plan = self._make_plan(rows)
            if rows <= KEPT_ROWS:
                if len(plans) >= KEPT_PLANS:
                    plans.clear()
                plans[rows] = plan
        return plan

    def _make_plan(self, rows: int) -> _Plan:
        padded = _pad(rows) if any(layer.weight.runs_packed(rows) for layer in self._layers) else rows
        packed = tuple(layer.weight.runs_packed(padded) for layer in self._layers)
        outputs: list[Tensor | None] = []
        gates: list[Tensor | None] = []
        for index, layer in enumerate(self._layers):
            # A layer reads what the one before it wrote: two buffers take turns, a third holds gates.
            make = not packed[index]
            outputs.append(self._view(index % 2, padded, layer.out_features) if make else None)
            gates.append(self._view(2, padded, layer.out_features) if make and layer.gate else None)
        return _Plan(
            rows=padded,
            strategy="onednn" if all(packed) else "onednn+addmm" if any(packed) else "addmm",
            packed=packed,
            outputs=tuple(outputs),
            gates=tuple(gates),
            # Zeros: what lies in the padding is computed with, and must not be slow to compute with.
            padded_input=torch.zeros(padded, self.spec.in_features) if padded != rows else None,
        )

    def _view(self, buffer: int, rows: int, width: int) -> Tensor:
        """(rows, width) at the start of one of this thread's buffers."""
        if rows > KEPT_ROWS:
            return torch.empty(rows, width)
        buffers = self._scratch.buffers
        needed = rows * self._widest
        if buffers[buffer].numel() < needed:
            # Views made before keep the smaller buffer alive; dropping their plans lets it go.
            self._scratch.plans.clear()
            buffers[buffer] = torch.empty(needed)
        return buffers[buffer][: rows * width].view(rows, width)


def _following(mlp: Mlp, spec: LayerSpec, is_last: bool) -> tuple[OutputActivation, float]:
    """What a layer applies to its result: its activation, unless that is its gate's, or the model's output's."""
    if is_last:
        return mlp.spec.output_activation, mlp.spec.output_negative_slope
    return ("identity", 0.01) if spec.gated else (spec.activation, spec.negative_slope)


def _pad(rows: int) -> int:
    """oneDNN builds a program per batch size, in about 0.6 ms, and keeps 1024 of them for the whole process:
    few enough sizes that all fit, close enough to each other that padding costs less than it saves."""
    if rows <= 8:
        return rows
    step = 4 if rows <= 64 else 32
    return -(-rows // step) * step


def _has_onednn() -> bool:
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available


register(Backend("torch", "fused", "cpu", 10, lambda _: None, TorchKernel))
