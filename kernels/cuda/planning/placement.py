# SPDX-License-Identifier: Apache-2.0
"""Where `layered` keeps the values of a program: in the results, side by side in the buffer of a concat, or in buffers
shared by values that are never needed at the same time. A slice is a place in another value; nothing is copied unless a
value is needed at two places. Data only."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fused_mlp.kernels.cuda.planning.stages import RowPass, Stage, stages_of
from fused_mlp.kernels.fusion import Product, count_uses
from fused_mlp.models import MlpSpec
from fused_mlp.models.program.spec import INPUT, Concat, Slice

X, Y, SCRATCH = 0, 1, 2  # buffers: the input, the results, and from here on those between
_RESULTS = ""  # the root of values in the results; the roots of all others are names of values


@dataclass(frozen=True)
class Place:
    """A column of a buffer whose rows are `row` elements apart."""

    buffer: int
    column: int
    row: int


@dataclass(frozen=True)
class Task:
    """One launch. `other` is what the result is combined with."""

    stage: Product | RowPass
    source: Place
    other: Place | None
    target: Place


@dataclass(frozen=True)
class Placement:
    tasks: tuple[Task, ...]
    scratch: tuple[int, ...]  # elements of a row, buffer by buffer from SCRATCH on


def scratch_row(width: int) -> int:
    """Rows of the buffers between layers start 16 elements apart, so that loads stay vector loads at odd
    widths."""
    return -(-width // 16) * 16


@dataclass(frozen=True)
class _Home:
    root: str
    column: int


@dataclass(frozen=True)
class _Write:
    stage: Product | RowPass
    source: _Home
    other: _Home | None
    target: _Home

    @property
    def roots(self) -> set[str]:
        homes = (self.source, self.other, self.target)
        return {home.root for home in homes if home is not None}


def place(spec: MlpSpec, stages: tuple[Stage, ...] | None = None) -> Placement:
    """Every launch with its places. `stages`: where the caller has merged some."""
    stages = stages_of(spec) if stages is None else stages
    homes = _homes(spec, stages)
    writes: list[_Write] = []

    def copy(value: str, target: _Home) -> None:
        writes.append(_Write(RowPass(value, value), homes[value], None, target))

    for stage in stages:
        if isinstance(stage, Slice):
            continue
        if isinstance(stage, Concat):
            column = homes[stage.name].column
            for source in stage.inputs:
                target = replace(homes[stage.name], column=column)
                if homes[source] != target:
                    copy(source, target)
                column += spec.widths_by_name[source]
            continue
        source = stage.step.input if isinstance(stage, Product) else stage.source
        other = None if stage.combined is None else homes[stage.combined.other]
        writes.append(_Write(stage, homes[source], other, homes[stage.name]))
    for output in spec.outputs:
        target = _Home(_RESULTS, spec.columns(output.name).start)
        if homes[output.value] != target:
            copy(output.value, target)
    return _in_buffers(spec, writes)


def _homes(spec: MlpSpec, stages: tuple[Stage, ...]) -> dict[str, _Home]:
    """Outputs are made in the results, parts of a concat within it; what a row pass alone reads, where the pass writes
    its own result."""
    makers = {stage.name: stage for stage in stages}
    uses = count_uses(spec, stages)
    homes = {INPUT: _Home(INPUT, 0)}

    def settle(value: str, home: _Home) -> None:
        if value not in homes and not isinstance(makers[value], Slice):
            homes[value] = home

    for output in spec.outputs:
        if output.value in makers:
            settle(output.value, _Home(_RESULTS, spec.columns(output.name).start))
    for stage in reversed(stages):
        if isinstance(stage, Slice):
            continue
        settle(stage.name, _Home(stage.name, 0))
        home = homes[stage.name]
        if isinstance(stage, Concat):
            column = home.column
            for source in stage.inputs:
                if source in makers:
                    settle(source, replace(home, column=column))
                column += spec.widths_by_name[source]
        elif (
            isinstance(stage, RowPass)
            and uses[stage.source] == 1
            and isinstance(makers.get(stage.source), (Product, RowPass))
        ):
            settle(stage.source, home)
    for stage in stages:
        if isinstance(stage, Slice):
            source_home = homes[stage.input]
            homes[stage.name] = replace(source_home, column=source_home.column + stage.start)
    return homes


def _in_buffers(spec: MlpSpec, writes: list[_Write]) -> Placement:
    """Roots become buffers. One is free again after the last launch that touches its root."""
    last = {root: index for index, write in enumerate(writes) for root in write.roots}
    buffers = {INPUT: X, _RESULTS: Y}
    rows = {INPUT: spec.in_features, _RESULTS: spec.out_features}
    sizes: list[int] = []
    free: list[int] = []
    tasks: list[Task] = []

    def put(home: _Home) -> Place:
        return Place(buffers[home.root], home.column, rows[home.root])

    for index, write in enumerate(writes):
        root = write.target.root
        if root not in buffers:
            rows[root] = scratch_row(spec.widths_by_name[root])
            if not free:
                free.append(len(sizes))
                sizes.append(0)
            chosen = free.pop(max(range(len(free)), key=lambda i: sizes[free[i]]))
            sizes[chosen] = max(sizes[chosen], rows[root])
            buffers[root] = SCRATCH + chosen
        other = None if write.other is None else put(write.other)
        tasks.append(Task(write.stage, put(write.source), other, put(write.target)))
        for done in sorted(write.roots - {INPUT, _RESULTS}):
            if last[done] == index:
                free.append(buffers[done] - SCRATCH)
    return Placement(tuple(tasks), tuple(sizes))
