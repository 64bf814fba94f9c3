# SPDX-License-Identifier: Apache-2.0
"""A program as kernels run it: every matrix product with the steps that its epilogue can finish while its tile is hot.
Owns which steps may go together; knows nothing of instruction sets, devices or memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeVar

from fused_mlp.models import MlpSpec
from fused_mlp.models.program.formula import Formula, FormulaError, parse
from fused_mlp.models.program.spec import Combination, Combine, Compare, Elementwise, Gated, Linear, Step
from fused_mlp.models.program.steps import Comparison

_IDENTITY = parse("x")


class Combined(NamedTuple):
    """The value that an epilogue combines its product with. `swapped`: the product is the second operand."""

    op: Combination | Comparison
    other: str
    swapped: bool


@dataclass(frozen=True)
class Product:
    """then(combined(function(input W^T + b))). For a gated step, `function` comes after the product of its halves.
    `name` is the value of the last step in it; values in between exist nowhere. `steps` are all that it computes."""

    step: Linear | Gated
    name: str
    steps: tuple[Step, ...]
    function: Formula = _IDENTITY
    combined: Combined | None = None
    then: Formula = _IDENTITY

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.step.input,) if self.combined is None else (self.step.input, self.combined.other)


FusedStep = Product | Step


class _Named(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def sources(self) -> tuple[str, ...]: ...


_Part = TypeVar("_Part", bound=_Named)
_Stage = TypeVar("_Stage")


def count_uses(spec: MlpSpec, steps: Iterable[_Named]) -> Counter[str]:
    """How often each value is read, by steps and as an output."""
    uses = Counter(source for step in steps for source in step.sources)
    uses.update(output.value for output in spec.outputs)
    return uses


def fuse(spec: MlpSpec) -> tuple[FusedStep, ...]:
    """The steps in an order in which they can run. A value is fused away only if nothing else reads it."""
    uses = count_uses(spec, spec.steps)
    fused: dict[str, FusedStep] = {}  # by the value that each makes
    made_at: dict[str, int] = {}
    for step in spec.steps:
        made: FusedStep = Product(step, step.name, (step,)) if isinstance(step, (Linear, Gated)) else step
        # The younger of two products first: its tile is more likely to be hot.
        for source in sorted(step.sources, key=lambda name: made_at.get(name, 0), reverse=True):
            product = fused.get(source)
            if not isinstance(product, Product) or uses[source] > 1:
                continue
            grown = _grow(product, step)
            if grown is not None:
                # It moves to the place of this step: everything that both read exists by then.
                del fused[source]
                made = grown
                break
        made_at[step.name] = len(made_at)
        fused[step.name] = made
    return tuple(fused.values())


def _grow(product: Product, step: Step) -> Product | None:
    """The product with one more step in its epilogue; None if that has no place for it."""
    grown = replace(product, name=step.name, steps=(*product.steps, step))
    if isinstance(step, Elementwise):
        both = compose(product.function if product.combined is None else product.then, step.formula)
        if both is None:
            return None
        return replace(grown, function=both) if product.combined is None else replace(grown, then=both)
    if isinstance(step, (Combine, Compare)) and product.combined is None:
        swapped = step.inputs[1] == product.name
        other = step.inputs[0] if swapped else step.inputs[1]
        return replace(grown, combined=Combined(step.op, other, swapped))
    return None


def compose(first: Formula, second: Formula) -> Formula | None:
    """second(first(x)); None if that is too long for one formula."""
    try:
        return second if first.is_identity else first.then(second)
    except FormulaError:
        return None


def join(
    spec: MlpSpec,
    steps: Sequence[_Part],
    make: Callable[[_Part], _Stage],
    grow: Callable[[_Stage, _Part], _Stage | None],
) -> list[_Stage]:
    """Stages that do several steps each: `make` begins one with a step; `grow` adds a step to the stage that made the
    last of its sources, if nothing else reads that, or returns None."""
    uses = count_uses(spec, steps)
    stages: list[_Stage] = []
    made_at: dict[str, int] = {}
    for step in steps:
        last = max(step.sources, key=lambda name: made_at.get(name, -1))
        place = made_at.get(last, -1)
        grown = grow(stages[place], step) if place >= 0 and uses[last] == 1 else None
        if grown is None:
            made_at[step.name] = len(stages)
            stages.append(make(step))
        else:
            made_at[step.name] = place
            stages[place] = grown
    return stages
