# SPDX-License-Identifier: Apache-2.0
"""How `whole` keeps values on the chip: as tiles of `chunk` columns, which Triton can neither slice nor join. A value
is therefore cut wherever another one begins or ends in it, and each part starts a tile of its own: then a concat or a
slice is a choice of tiles, and costs nothing. Data only."""

from __future__ import annotations

from itertools import accumulate, pairwise

from fused_mlp.kernels.cuda.planning.stages import RowPass, Stage
from fused_mlp.kernels.fusion import Product
from fused_mlp.models import MlpSpec
from fused_mlp.models.program.spec import INPUT, Concat, Slice

Reference = tuple[str, int]  # a value, and one of its tiles


class Columns:
    """The tiles of every value of a program."""

    def __init__(self, spec: MlpSpec, stages: tuple[Stage, ...], chunk: int) -> None:
        self.chunk = chunk
        self._widths = spec.widths_by_name
        self._cuts: dict[str, set[int]] = {name: set() for name in (INPUT, *(s.name for s in stages))}
        while sum([self._cut(stage) for stage in stages]):
            pass
        self._references: dict[str, tuple[Reference, ...]] = {INPUT: self._own(INPUT)}
        for stage in stages:
            self._references[stage.name] = self._find(stage)

    def counts(self, value: str) -> tuple[int, ...]:
        """How many columns of the value each of its tiles holds; the rest of a tile is padding."""
        cuts = [0, *sorted(self._cuts[value]), self._widths[value]]
        counts: list[int] = []
        for start, stop in pairwise(cuts):
            full, rest = divmod(stop - start, self.chunk)
            counts += [self.chunk] * full + [rest] * (rest > 0)
        return tuple(counts)

    def references(self, value: str) -> tuple[Reference, ...]:
        """The tiles that hold the value: its own, or those of the values that it is put together from."""
        return self._references[value]

    def padded(self, value: str) -> int:
        return len(self.counts(value)) * self.chunk

    def _own(self, value: str) -> tuple[Reference, ...]:
        return tuple((value, index) for index in range(len(self.counts(value))))

    def _find(self, stage: Stage) -> tuple[Reference, ...]:
        if isinstance(stage, Concat):
            return tuple(each for source in stage.inputs for each in self._references[source])
        if isinstance(stage, Slice):
            starts = accumulate(self.counts(stage.input)[:-1], initial=0)
            tiles = self._references[stage.input]
            return tuple(
                tile for tile, at in zip(tiles, starts, strict=True) if stage.start <= at < stage.stop
            )
        return self._own(stage.name)

    def _cut(self, stage: Stage) -> bool:
        """Give the values of a stage the cuts that follow from those of the others; whether any was new."""
        match stage:
            case Product():
                same = [stage.name] if stage.combined is None else [stage.name, stage.combined.other]
                return self._share([(value, 0) for value in same])
            case RowPass():
                return self._share([(value, 0) for value in (stage.name, *stage.sources)])
            case Slice():
                whole = self._cuts[stage.input]
                before = len(whole)
                whole |= {at for at in (stage.start, stage.stop) if 0 < at < self._widths[stage.input]}
                return self._share([(stage.input, 0), (stage.name, stage.start)]) or len(whole) > before
        at, changed = 0, False
        for source in stage.inputs:
            whole = self._cuts[stage.name]
            before = len(whole)
            whole |= {at} - {0}
            changed |= len(whole) > before
            changed |= self._share([(stage.name, 0), (source, at)])
            at += self._widths[source]
        return changed

    def _share(self, values: list[tuple[str, int]]) -> bool:
        """All cuts of each, as far as they are within the others; (value, where it begins)."""
        cuts = {at + cut for value, at in values for cut in self._cuts[value]}
        changed = False
        for value, at in values:
            mine = {cut - at for cut in cuts if 0 < cut - at < self._widths[value]}
            changed |= mine > self._cuts[value]
            self._cuts[value] |= mine
        return changed


def positions(counts: tuple[int, ...], chunk: int) -> list[int]:
    """Where each column of a value is among the columns of its tiles, side by side."""
    return [index * chunk + column for index, count in enumerate(counts) for column in range(count)]
