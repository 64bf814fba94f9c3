"""A program as kernels run it: every matrix product with the steps that its epilogue can finish while its tile is hot.
Owns which steps go together; knows nothing of instruction sets, devices or memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fused_mlp.models import MlpSpec
from fused_mlp.models.formula import Formula, parse
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
    `name` is the value of the last step in it; values in between exist nowhere."""

    step: Linear | Gated
    name: str
    function: Formula = _IDENTITY
    combined: Combined | None = None
    then: Formula = _IDENTITY

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.step.input,) if self.combined is None else (self.step.input, self.combined.other)


FusedStep = Product | Step


def fuse(spec: MlpSpec) -> tuple[FusedStep, ...]:
    """The steps in an order in which they can run. A value is fused away only if nothing else reads it."""
    uses: dict[str, int] = {}
    for name in [source for step in spec.steps for source in step.sources] + [o.value for o in spec.outputs]:
        uses[name] = uses.get(name, 0) + 1
    fused: list[FusedStep] = []
    made_at: dict[str, int] = {}  # value -> its place in `fused`; the input has none

    for step in spec.steps:
        last = max(step.sources, key=lambda name: made_at.get(name, -1))
        place = made_at.get(last, -1)
        before = fused[place] if place >= 0 else None
        grown = _grow(before, step) if isinstance(before, Product) and uses[last] == 1 else None
        if grown is not None:
            fused[place] = grown
            del made_at[last]
            made_at[step.name] = place
            continue
        made_at[step.name] = len(fused)
        fused.append(Product(step, step.name) if isinstance(step, (Linear, Gated)) else step)
    return tuple(fused)


def _grow(product: Product, step: Step) -> Product | None:
    """The product with one more step in its epilogue; None if that has no place for it."""
    if isinstance(step, Elementwise):
        if product.combined is None:
            return replace(product, name=step.name, function=_then(product.function, step.formula))
        return replace(product, name=step.name, then=_then(product.then, step.formula))
    if isinstance(step, Combine) and product.combined is None and step.inputs[0] != step.inputs[1]:
        swapped = step.inputs[1] == product.name
        other = step.inputs[0] if swapped else step.inputs[1]
        return replace(product, name=step.name, combined=Combined(step.op, other, swapped))
    return None


def _then(first: Formula, second: Formula) -> Formula:
    return second if first.is_identity else first.then(second)
