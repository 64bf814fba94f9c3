"""A program as kernels run it: every matrix product with the steps that its epilogue can finish while its tile is hot.
Owns which steps go together; knows nothing of instruction sets, devices or memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from fused_mlp.models import MlpSpec
from fused_mlp.models.formula import Formula, FormulaError, parse
from fused_mlp.models.spec import Combination, Combine, Elementwise, Gated, Linear, Step

_IDENTITY = parse("x")


@dataclass(frozen=True)
class Combined:
    """What an epilogue combines its product with. `swapped`: the product is the second operand."""

    op: Combination
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


def fuse(spec: MlpSpec) -> tuple[FusedStep, ...]:
    """The steps in an order in which they can run. A value is fused away only if nothing else reads it."""
    readers = Counter(source for step in spec.steps for source in step.sources)
    readers.update(output.value for output in spec.outputs)
    fused: dict[str, FusedStep] = {}  # by the value that each makes
    made_at: dict[str, int] = {}
    for step in spec.steps:
        made: FusedStep = Product(step, step.name, (step,)) if isinstance(step, (Linear, Gated)) else step
        # The younger of two products first: its tile is more likely to be hot.
        for source in sorted(step.sources, key=lambda name: made_at.get(name, 0), reverse=True):
            product = fused.get(source)
            if not isinstance(product, Product) or readers[source] > 1:
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
    try:
        if isinstance(step, Elementwise):
            if product.combined is None:
                return replace(grown, function=_then(product.function, step.formula))
            return replace(grown, then=_then(product.then, step.formula))
    except FormulaError:  # the two functions together are too long for one
        return None
    if isinstance(step, Combine) and product.combined is None:
        swapped = step.inputs[1] == product.name
        other = step.inputs[0] if swapped else step.inputs[1]
        return replace(grown, combined=Combined(step.op, other, swapped))
    return None


def _then(first: Formula, second: Formula) -> Formula:
    return second if first.is_identity else first.then(second)
