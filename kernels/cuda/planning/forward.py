# SPDX-License-Identifier: Apache-2.0
"""A forward pass as data: the launches in order, each with its grid as a function of the rows and with what its kernel
gets, argument by argument. Whatever launches (through Triton or natively) and whatever compiles ahead reads it, and
adds machine code, packed tensors and addresses. Imports neither torch nor triton."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from fused_mlp.kernels.cuda.planning.placement import SCRATCH, X, Y
from fused_mlp.kernels.cuda.planning.plans import (
    ELEMENT_TYPES,
    MANY,
    SPLIT_ROWS,
    LaunchPlan,
    epilogue_of,
    gather_plan,
    layered_launches,
    whole_plan,
)
from fused_mlp.kernels.cuda.planning.splitting import is_split, split, sums_of_row
from fused_mlp.kernels.cuda.planning.stages import RowPass
from fused_mlp.kernels.cuda.planning.tiles import Tile
from fused_mlp.kernels.fusion import Product
from fused_mlp.kernels.lookups import Lookups, lookups_of
from fused_mlp.models import MlpSpec
from fused_mlp.models.program.spec import Gated, Linear


@dataclass(frozen=True)
class Argument:
    """buffer: the address of a buffer of the batch, as `placement` numbers them (the input, the results, then those
    between). tensor: that of a packed tensor. rows: how many there are, 32 bits."""

    kind: Literal["buffer", "tensor", "rows"]
    index: int = 0


ROWS = Argument("rows")


@dataclass(frozen=True)
class Launch:
    """`plan.grid(rows)` programs of `32 * plan.warps` threads. The arguments are those of the kernel in their order,
    before its constants, of which machine code knows nothing."""

    plan: LaunchPlan
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Matrices:
    """The matrix of a product, and its gate's: (n, k) each, zero-padded."""

    step: Linear | Gated
    n: int
    k: int


@dataclass(frozen=True)
class Vectors:
    """The biases of a product, n each; then weight and bias of a row pass, `width` each."""

    step: Linear | Gated | None
    n: int
    row: RowPass | None
    width: int


@dataclass(frozen=True)
class Scratch:
    """A buffer between launches: the elements of a row, their Triton type, and for how many rows it is ever used."""

    row: int
    element: str
    max_rows: int = MANY


@dataclass(frozen=True)
class ForwardPlan:
    """`tensors`: what is packed for `layered`; `whole` has two, weights and vectors, as `whole_steps` places them."""

    tile: Tile
    launches: tuple[Launch, ...]
    tensors: tuple[Matrices | Vectors, ...] = ()
    scratch: tuple[Scratch, ...] = ()
    lookups: Lookups | None = None  # its tables, and what is read of them, come after the other tensors

    @property
    def max_launches(self) -> int:
        """The largest number of launches that a batch takes."""
        return max(sum(each.plan.grid(rows) > 0 for each in self.launches) for rows in (1, MANY))


def plan_forward(spec: MlpSpec, tile: Tile) -> ForwardPlan:
    lookups = lookups_of(spec)
    if lookups is not None:
        return _with_lookups(spec, lookups, plan_forward(lookups.rest, tile))
    return _whole(spec, tile) if tile.strategy == "whole" else _layered(spec, tile)


def _with_lookups(spec: MlpSpec, lookups: Lookups, rest: ForwardPlan) -> ForwardPlan:
    """The rest reads the dense rows where it would read the input."""
    dense = Argument("buffer", SCRATCH + len(rest.scratch))
    count = 2 if rest.tile.strategy == "whole" else len(rest.tensors)
    tables, parts = Argument("tensor", count), Argument("tensor", count + 1)
    gather = Launch(gather_plan(spec, lookups), (Argument("buffer", X), tables, parts, dense))
    instead = {Argument("buffer", X): dense}
    launches = [
        replace(each, arguments=tuple(instead.get(argument, argument) for argument in each.arguments))
        for each in rest.launches
    ]
    scratch = (*rest.scratch, Scratch(lookups.rest.in_features, "fp32"))
    return replace(rest, launches=(gather, *launches), scratch=scratch, lookups=lookups)


def _whole(spec: MlpSpec, tile: Tile) -> ForwardPlan:
    arguments = (
        Argument("buffer", X),
        Argument("tensor", 0),
        Argument("tensor", 1),
        Argument("buffer", Y),
        ROWS,
    )
    return ForwardPlan(tile, (Launch(whole_plan(spec, tile), arguments),))


def _layered(spec: MlpSpec, tile: Tile) -> ForwardPlan:
    steps, sizes = layered_launches(spec, tile)
    scratch = [Scratch(size, ELEMENT_TYPES[spec.dtype]) for size in sizes]
    sums = Argument("buffer", SCRATCH + len(scratch))  # of all splits: one is done before the next begins
    sums_row = 0
    tensors: list[Matrices | Vectors] = []
    launches: list[Launch] = []
    matrices: dict[str, int] = {}  # by the prefix of their names: a module that is called twice is kept once

    def add(plan: LaunchPlan, *arguments: Argument) -> None:
        launches.append(Launch(replace(plan, dependent=not first or plan.kernel == "join"), arguments))

    for each in steps:
        first = each is steps[0]
        source, other, target = (Argument("buffer", index) for index in each.buffers)
        if not isinstance(each.stage, Product):
            tensors.append(Vectors(None, 0, each.stage, spec.widths_by_name[each.stage.source]))
            add(each.plan, source, other, Argument("tensor", len(tensors) - 1), target)
            continue
        step = each.stage.step
        n, k = epilogue_of(each.plan).padded, each.plan.constants["W_ROW"]
        assert isinstance(k, int)
        if step.prefix not in matrices:
            matrices[step.prefix] = len(tensors)
            tensors.append(Matrices(step, n, k))
        weights = Argument("tensor", matrices[step.prefix])
        tensors.append(Vectors(step, n, each.tail, n))
        vectors = Argument("tensor", len(tensors) - 1)
        whole = each.plan
        if tile.split and is_split(spec.widths_by_name[step.input], each.plan.column_blocks):
            whole, part, join = split(each.plan)
            sums_row = max(sums_row, sums_of_row(each.plan))
            add(part, source, weights, sums, ROWS)
            add(join, sums, other, vectors, target, ROWS)
        add(whole, source, other, weights, vectors, target, ROWS)
    if sums_row:
        scratch.append(Scratch(sums_row, "fp32", SPLIT_ROWS))
    return ForwardPlan(tile, tuple(launches), tuple(tensors), tuple(scratch))
