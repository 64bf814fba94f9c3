# SPDX-License-Identifier: Apache-2.0
"""A program in plain torch operators, forward and backward, for any dtype and device: what the fused operator computes
where no kernel can, and how it differentiates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fused_mlp.models import MlpSpec
from fused_mlp.models.importers.torch.steps import as_words, compute, ids_of
from fused_mlp.models.program.spec import INPUT
from fused_mlp.models.weights.mlp import expected_shapes


def forward(x: Tensor, weights: Sequence[Tensor], spec: MlpSpec) -> Tensor:
    """x: (..., in_features), in float32 if it has ids; weights in the order of `expected_shapes`. All outputs side by
    side."""
    return forward_named(x, dict(zip(expected_shapes(spec), weights, strict=True)), spec)


def forward_named(x: Tensor, tensors: Mapping[str, Tensor], spec: MlpSpec) -> Tensor:
    """Values of ids are the words of a record here, as everywhere. Ids do not survive another dtype: a record is cut
    first, and the weights' dtype is that of its floats."""
    kinds = spec.kinds_by_name
    dtype = next((weight.dtype for weight in tensors.values()), x.dtype) if spec.record else x.dtype
    values = {INPUT: x.to(dtype) if kinds.get(INPUT) == "float" else x}
    for step in spec.steps:
        sources, prefix = [values[source] for source in step.sources], step.prefix
        if step.makes is not None:  # others move words as they are
            named = zip(step.sources, sources, strict=True)
            sources = [ids_of(value) if kinds[name] == "id" else value for name, value in named]
        made = compute(step, sources, lambda name: tensors.get(f"{prefix}.{name}"))  # noqa: B023 - called at once
        if step.makes == "id":
            made = as_words(made)
        elif kinds[step.name] == "float" and (spec.record or step.reads):
            made = made.to(dtype)
        values[step.name] = made
    results = [values[output.value] for output in spec.outputs]
    return results[0] if len(results) == 1 else torch.cat(results, -1)


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
