# SPDX-License-Identifier: Apache-2.0
"""A program as the CUDA kernels launch it: products, with what their epilogues do, and passes over rows, each of which
does as many of the steps between two products as it can. Owns which steps make one pass; knows nothing of memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fused_mlp.kernels.fusion import Combined, FusedStep, Product, compose, fuse, join
from fused_mlp.models import MlpSpec
from fused_mlp.models.program.formula import Formula, parse
from fused_mlp.models.program.spec import Affine, Combine, Concat, Elementwise, Norm, Slice, Softmax

_IDENTITY = parse("x")


@dataclass(frozen=True)
class RowPass:
    """then(combined(function(normalized(source) * weight + bias))): `scaled` is the step with weight and bias."""

    name: str
    source: str
    normalized: Norm | Softmax | None = None
    scaled: Norm | Affine | None = None
    function: Formula = _IDENTITY
    combined: Combined | None = None
    then: Formula = _IDENTITY

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,) if self.combined is None else (self.source, self.combined.other)


Stage = Product | RowPass | Concat | Slice


def stages_of(spec: MlpSpec) -> tuple[Stage, ...]:
    """In an order in which they can run. A value that nothing else reads is passed on within a pass."""
    return tuple(join(spec, fuse(spec), _stage, _grow))


def _stage(step: FusedStep) -> Stage:
    match step:
        case Product() | Concat() | Slice():
            return step
        case Norm():
            return RowPass(step.name, step.input, normalized=step, scaled=step)
        case Softmax():
            return RowPass(step.name, step.input, normalized=step)
        case Affine():
            return RowPass(step.name, step.input, scaled=step)
        case Elementwise():
            return RowPass(step.name, step.input, function=step.formula)
        case Combine():
            first, second = step.inputs
            return RowPass(step.name, first, combined=Combined(step.op, second, swapped=False))
    raise AssertionError(step)  # a linear step is always a product


def _grow(row: Stage, step: FusedStep) -> RowPass | None:
    """The pass with one more step; None if it has no place for it."""
    if not isinstance(row, RowPass):
        return None
    if isinstance(step, Elementwise):
        both = compose(row.function if row.combined is None else row.then, step.formula)
        if both is None:
            return None
        grown = replace(row, name=step.name)
        return replace(grown, function=both) if row.combined is None else replace(grown, then=both)
    if isinstance(step, Affine) and row.scaled is None and row.function.is_identity and row.combined is None:
        return replace(row, name=step.name, scaled=step)
    if isinstance(step, Combine) and row.combined is None and step.inputs[0] != step.inputs[1]:
        swapped = step.inputs[1] == row.name
        other = step.inputs[0] if swapped else step.inputs[1]
        return replace(row, name=step.name, combined=Combined(step.op, other, swapped))
    return None
