# SPDX-License-Identifier: Apache-2.0
"""Cuts a two-tower model, whose score is the product of two vectors, into one model for each vector: those of the items
can then be computed ahead. Knows programs and their tensors; nothing of kernels or files."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.program.inputs import record_of
from fused_mlp.models.program.spec import INPUT, Combine, Linear, MlpSpec, Output, Step
from fused_mlp.models.program.steps import Affine, Elementwise, Slice
from fused_mlp.models.weights.dtypes import Array, widen
from fused_mlp.models.weights.mlp import Mlp


class Towers(NamedTuple):
    """Two models whose answers, multiplied and summed, are the score.

    Attributes:
        first: The tower that comes first in the model, usually of the user.
        second: The other one, usually of the item.
    """

    first: Mlp
    second: Mlp


def split(mlp: Mlp) -> Towers:
    """Split a model whose score is a dot product or a cosine of two vectors into its two towers.

    The vectors of a cosine have length one. Functions after the product, such as a sigmoid or a bias, are in neither
    tower: they change scores, not the order of items.

    Args:
        mlp: The model.

    Returns:
        Both towers, each a model of its own.

    Raises:
        ModelLoadError: The score is no such product.
    """
    spec = mlp.spec
    steps = {step.name: step for step in spec.steps}
    if len(spec.outputs) != 1:
        raise ModelLoadError(f"expected one output, a product of two vectors, got {len(spec.outputs)}")
    last = steps.get(spec.outputs[0].value)
    while isinstance(last, (Elementwise, Affine)):
        last = steps.get(last.input)
    product = steps.get(last.input) if isinstance(last, Linear) and last.out_features == 1 else None
    if not isinstance(last, Linear) or not isinstance(product, Combine) or product.op != "multiply":
        raise ModelLoadError(
            f"expected a score that is a dot product or a cosine of two vectors, got {spec.summary()}"
        )
    weight = mlp.tensor(last, "weight")
    assert weight is not None
    scale = widen(weight).reshape(-1)
    first, second = product.inputs
    return Towers(_tower(mlp, first, None), _tower(mlp, second, None if (scale == 1).all() else scale))


def _tower(mlp: Mlp, value: str, scale: Array | None) -> Mlp:
    """The steps that make `value`, times `scale`, of the inputs that they read."""
    spec = mlp.spec
    if spec.inputs is None:
        raise ModelLoadError("expected named inputs, at least one for each vector, got one unnamed input")
    wanted, kept = {value}, list[Step]()
    for step in reversed(spec.steps):
        if step.name in wanted:
            wanted.update(step.sources)
            kept.append(step)
    moved = _moves(spec, kept)
    steps = [_moved(step, moved) for step in reversed(kept)]
    tensors = mlp.tensors()
    if scale is not None:
        name = f"{value}_scaled"
        while name in wanted:
            name += "_"
        steps.append(Affine(name=name, input=value, bias=False))
        tensors[f"{name}.weight"] = np.ascontiguousarray(scale, np.float32)
        value = name
    inputs = spec.inputs or ()
    names = {part.input.name for part in record_of(inputs) if part.start in moved}
    tower = MlpSpec(
        in_features=len(moved),
        inputs=tuple(each for each in inputs if each.name in names),
        steps=tuple(steps),
        outputs=(Output(name="vector", value=value),),
        dtype=spec.dtype,
    )
    return Mlp(tower, {name: tensors[name] for name, _ in tower.shapes()}, source=mlp.source)


def _moves(spec: MlpSpec, steps: list[Step]) -> dict[int, int]:
    """Where the words of a record go: those of each input that is read, side by side."""
    read: set[int] = set()
    for step in steps:
        if INPUT in step.sources:
            read.update(range(step.start, step.stop) if isinstance(step, Slice) else range(spec.in_features))
    if spec.inputs:
        names = {part.input.name for part in spec.record if not read.isdisjoint(range(part.start, part.stop))}
        words = [
            word for part in spec.record if part.input.name in names for word in range(part.start, part.stop)
        ]
    else:
        words = list(range(min(read, default=0), max(read, default=0) + 1))
    return {word: at for at, word in enumerate(words)}


def _moved(step: Step, moved: dict[int, int]) -> Step:
    if not isinstance(step, Slice) or step.input != INPUT:
        return step
    start = moved[step.start]
    return step.model_copy(update={"start": start, "stop": start + step.stop - step.start})
