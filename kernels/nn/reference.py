"""An MLP in plain torch operators, forward and backward, for any dtype and device: what the fused operator computes
where no kernel can, and how it differentiates. Written out with torch's own derivatives rather than recorded by
autograd, so that torch.compile can trace it and a second derivative exists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fused_mlp.models import MlpSpec, OutputActivation
from fused_mlp.models.importers.torch_modules import activation_module

aten = torch.ops.aten


# Written out: torch has no second derivative of its own operators for these two.
def _derive_silu(grad: Tensor, z: Tensor) -> Tensor:
    gate = z.sigmoid()
    return grad * gate * (1 + z * (1 - gate))


def _derive_mish(grad: Tensor, z: Tensor) -> Tensor:
    bend = functional.softplus(z).tanh()
    return grad * (bend + z * z.sigmoid() * (1 - bend * bend))


# (gradient, input, slope) -> gradient of the input.
_DERIVATIVES: dict[OutputActivation, Callable[[Tensor, Tensor, float], Tensor]] = {
    "identity": lambda g, z, _: g,
    "relu": lambda g, z, _: aten.threshold_backward(g, z, 0.0),
    "leaky_relu": lambda g, z, slope: aten.leaky_relu_backward(g, z, slope, False),
    "gelu": lambda g, z, _: aten.gelu_backward(g, z),
    "gelu_tanh": lambda g, z, _: aten.gelu_backward(g, z, approximate="tanh"),
    "silu": lambda g, z, _: _derive_silu(g, z),
    "tanh": lambda g, z, _: aten.tanh_backward(g, z.tanh()),
    "sigmoid": lambda g, z, _: aten.sigmoid_backward(g, z.sigmoid()),
    "elu": lambda g, z, _: aten.elu_backward(g, 1.0, 1.0, 1.0, False, z),
    "softplus": lambda g, z, _: aten.softplus_backward(g, z, 1.0, 20.0),
    "hardswish": lambda g, z, _: aten.hardswish_backward(g, z),
    "relu6": lambda g, z, _: aten.hardtanh_backward(g, z, 0.0, 6.0),
    "mish": lambda g, z, _: _derive_mish(g, z),
    "softmax": lambda g, z, _: aten._softmax_backward_data(g, z.softmax(-1), -1, z.dtype),
    "log_softmax": lambda g, z, _: aten._log_softmax_backward_data(g, z.log_softmax(-1), -1, z.dtype),
}


@dataclass(frozen=True)
class _Layer:
    """Where a layer's tensors are in the flat list of weights; -1 where it has none."""

    weight: int
    bias: int
    gate_weight: int
    gate_bias: int
    activation: OutputActivation
    slope: float


def layers_of(spec: MlpSpec) -> list[_Layer]:
    """The flat order is that of `fused_mlp.models.weights.expected_shapes`: weight, bias, gate_weight, gate_bias."""
    layers: list[_Layer] = []
    count = 0

    def take(present: bool) -> int:
        nonlocal count
        count += present
        return count - 1 if present else -1

    for each in spec.layers:
        layers.append(
            _Layer(
                weight=take(True),
                bias=take(each.bias),
                gate_weight=take(each.gated),
                gate_bias=take(each.gated and each.bias),
                activation=each.activation,
                slope=each.negative_slope,
            )
        )
    return layers


def forward(x: Tensor, weights: Sequence[Tensor], spec: MlpSpec) -> Tensor:
    """x: (rows, in_features); weights in flat order."""
    for layer in layers_of(spec):
        x = _layer_forward(x, weights, layer)[0]
    output: Tensor = activation_module(spec.output_activation, spec.output_negative_slope)(x)
    return output


def backward(
    grad: Tensor, x: Tensor, weights: Sequence[Tensor], spec: MlpSpec, wanted: Sequence[bool]
) -> tuple[Tensor | None, list[Tensor | None]]:
    """The gradients of x and of the weights, those that are `wanted`: first x, then the weights in their order.
    Computes the layers again: the fused kernel keeps nothing of them."""
    inputs, saved = [x], []
    for layer in layers_of(spec):
        x, z, up = _layer_forward(x, weights, layer)
        inputs.append(x)
        saved.append((z, up))
    wants_x, *wants = wanted
    found: dict[int, Tensor] = {}
    grad = _DERIVATIVES[spec.output_activation](grad, x, spec.output_negative_slope)
    for index, layer in reversed(list(enumerate(layers_of(spec)))):
        z, up = saved[index]
        source = inputs[index]
        derive = _DERIVATIVES[layer.activation]
        below: Tensor | None = None
        if layer.gate_weight >= 0:
            gate = activation_module(layer.activation, layer.slope)(z)
            halves = [
                (layer.weight, layer.bias, grad * gate),
                (layer.gate_weight, layer.gate_bias, derive(grad * up, z, layer.slope)),
            ]
        else:
            halves = [(layer.weight, layer.bias, derive(grad, z, layer.slope))]
        for weight, bias, delta in halves:
            if wants[weight]:
                found[weight] = delta.t() @ source
            if bias >= 0 and wants[bias]:
                found[bias] = delta.sum(0)
            if index > 0 or wants_x:
                part = delta @ weights[weight]
                below = part if below is None else below + part
        if below is None:  # the gradient of x is not wanted
            return None, [found.get(each) for each in range(len(weights))]
        grad = below
    return grad, [found.get(each) for each in range(len(weights))]


def _layer_forward(x: Tensor, weights: Sequence[Tensor], layer: _Layer) -> tuple[Tensor, Tensor, Tensor]:
    """(result, what the activation saw, the up projection; the latter is of use for gated layers only)."""
    activation = activation_module(layer.activation, layer.slope)
    up = functional.linear(x, weights[layer.weight], weights[layer.bias] if layer.bias >= 0 else None)
    if layer.gate_weight < 0:
        return activation(up), up, up
    gate_bias = weights[layer.gate_bias] if layer.gate_bias >= 0 else None
    z = functional.linear(x, weights[layer.gate_weight], gate_bias)
    return activation(z) * up, z, up
