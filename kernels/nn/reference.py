# SPDX-License-Identifier: Apache-2.0
"""A program in plain torch operators, forward and backward, for any dtype and device: what the fused operator computes
where no kernel can, and how it differentiates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fused_mlp.models import MlpSpec
from fused_mlp.models.importers.torch.formulas import FUNCTIONS, apply
from fused_mlp.models.importers.torch.modules import normalize
from fused_mlp.models.spec import INPUT, Step
from fused_mlp.models.weights import expected_shapes


def forward(x: Tensor, weights: Sequence[Tensor], spec: MlpSpec) -> Tensor:
    """x: (..., in_features); weights in the order of `expected_shapes`. All outputs side by side."""
    tensors = dict(zip(expected_shapes(spec), weights, strict=True))
    values = {INPUT: x}
    for step in spec.steps:
        values[step.name] = _step(step, [values[source] for source in step.sources], tensors)
    results = [values[output.value] for output in spec.outputs]
    return results[0] if len(results) == 1 else torch.cat(results, -1)


def _step(step: Step, sources: list[Tensor], tensors: dict[str, Tensor]) -> Tensor:  # noqa: PLR0911 - a table of steps
    x = sources[0]

    def tensor(name: str) -> Tensor | None:
        return tensors.get(f"{step.prefix}.{name}")

    def linear(half: str = "") -> Tensor:
        return functional.linear(x, tensors[f"{step.prefix}.{half}weight"], tensor(f"{half}bias"))

    match step.op:
        case "linear":
            return linear()
        case "gated":
            return apply(step.formula, linear("gate_")) * linear()
        case "elementwise":
            return apply(step.formula, x)
        case "norm":
            return normalize(x, step.kind, step.eps, tensor("weight"), tensor("bias"))
        case "affine":
            weight, bias = tensor("weight"), tensor("bias")
            x = x if weight is None else x * weight
            return x if bias is None else x + bias
        case "softmax":
            return x.softmax(-1)
        case "log_softmax":
            return x.log_softmax(-1)
        case "concat":
            return torch.cat(sources, -1)
        case "slice":
            return x[..., step.start : step.stop]
    result: Tensor = FUNCTIONS[step.op](*sources)
    return result


def backward(
    grad: Tensor, x: Tensor, weights: Sequence[Tensor], spec: MlpSpec, wanted: Sequence[bool]
) -> tuple[Tensor | None, list[Tensor | None]]:
    """The gradients of x and of the weights, those that are `wanted`: first x, then the weights in their order.
    Computes the steps again: the fused kernel keeps nothing of them. A vjp, which torch.compile can trace and which has
    a derivative itself."""
    given = [x, *weights]
    places = [index for index, each in enumerate(wanted) if each]

    def run(*varied: Tensor) -> Tensor:
        everything = list(given)
        for place, value in zip(places, varied, strict=True):
            everything[place] = value
        return forward(everything[0], everything[1:], spec)

    _, pull, *_ = torch.func.vjp(run, *(given[place] for place in places))
    found: list[Tensor | None] = [None] * len(given)
    for place, value in zip(places, pull(grad), strict=True):
        found[place] = value
    return found[0], found[1:]
