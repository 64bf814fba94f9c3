# SPDX-License-Identifier: Apache-2.0
"""Where the torch kernel keeps the values of a program: which steps work in place, and which buffers are shared because
their values never live at the same time. Knows nothing of torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from fused_mlp.models import MlpSpec
from fused_mlp.models.spec import INPUT, Concat, Gated, Linear, Slice, Step

X, Y = 0, 1  # the places of the caller's rows and of the result


@dataclass
class _Place:
    """Memory of `width` columns that holds values from one step to another; a slice is a part of another place."""

    width: int
    first: int
    last: int
    buffer: int = -1
    base: int = -1


@dataclass(frozen=True)
class Layout:
    """`places`: of every value by name, an index. Place X is the input, Y the result; `buffers[i]` is (buffer, width)
    of place i + 2, None for a part of another one. `scratch`: the places of the gates of gated steps."""

    places: dict[str, int]
    scratch: dict[str, int]
    buffers: tuple[tuple[int, int] | None, ...]
    widths: tuple[int, ...]  # of the buffers
    copied: tuple[tuple[str, slice], ...]  # outputs that are not made in Y itself, and their columns


@dataclass
class _Layouter:
    spec: MlpSpec
    places: list[_Place] = field(default_factory=list)
    of: dict[str, int] = field(default_factory=dict)
    scratch: dict[str, int] = field(default_factory=dict)

    def run(self) -> Layout:
        end = len(self.spec.steps)
        last_read = {
            name: index for index, step in enumerate(self.spec.steps) for name in (step.name, *step.sources)
        }
        last_read.update({output.value: end for output in self.spec.outputs})
        self.places = [
            _Place(self.spec.in_features, -1, end + 1),
            _Place(self.spec.out_features, -1, end + 1),
        ]
        self.of = {INPUT: X}
        for index, step in enumerate(self.spec.steps):
            self.of[step.name] = place = self._place(index, step)
            while place >= 0:  # a part keeps the whole alive
                self.places[place].last = max(self.places[place].last, last_read[step.name])
                place = self.places[place].base
        return self._finish()

    def _place(self, index: int, step: Step) -> int:
        width = self.spec.widths_by_name[step.name]
        if isinstance(step, Slice):
            return self._new(_Place(width, index, index, base=self.of[step.input]))
        if isinstance(step, Gated):
            self.scratch[step.name] = self._new(_Place(width, index, index))
        if not isinstance(step, (Linear, Gated, Concat)):
            for source in step.sources:
                place = self.places[self.of[source]]
                if place.last == index and place.base < 0:  # nothing reads it later: work in place
                    return self.of[source]
        return self._new(_Place(width, index, index))

    def _new(self, place: _Place) -> int:
        self.places.append(place)
        return len(self.places) - 1

    def _finish(self) -> Layout:
        copied = []
        result = self.of[self.spec.outputs[0].value]
        if len(self.spec.outputs) == 1 and self.places[result].base < 0:  # made in the result itself
            for names in (self.of, self.scratch):
                names.update({name: Y for name, place in names.items() if place == result})
            self.places[result].base = Y
        else:
            copied = [(output.value, self.spec.columns(output.name)) for output in self.spec.outputs]
        widths: list[int] = []
        busy_until: list[int] = []
        for place in self.places[2:]:  # in the order in which they are first written
            if place.base >= 0:
                continue
            free = [each for each, last in enumerate(busy_until) if last < place.first]
            place.buffer = free[0] if free else len(widths)
            if not free:
                widths.append(0)
                busy_until.append(0)
            widths[place.buffer] = max(widths[place.buffer], place.width)
            busy_until[place.buffer] = place.last
        buffers = tuple(None if each.base >= 0 else (each.buffer, each.width) for each in self.places[2:])
        return Layout(self.of, self.scratch, buffers, tuple(widths), tuple(copied))


def lay_out(spec: MlpSpec) -> Layout:
    return _Layouter(spec).run()
