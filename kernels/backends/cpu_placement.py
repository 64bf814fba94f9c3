# SPDX-License-Identifier: Apache-2.0
"""A program as operations on regions of buffers, in order. Owns where every value of a CPU kernel lives: concatenated
values side by side, slices inside their sources, outputs in the result itself, and all other values in scratch buffers
that are shared as soon as their values are no longer needed. Knows nothing of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from fused_mlp.kernels.fusion import Combined, FusedStep, Product, compose, fuse, join
from fused_mlp.models import MlpSpec
from fused_mlp.models.program.formula import Formula, parse
from fused_mlp.models.program.spec import INPUT
from fused_mlp.models.program.steps import (
    Affine,
    Bag,
    Combine,
    Compare,
    Concat,
    Elementwise,
    Embedding,
    Gated,
    Linear,
    Norm,
    Slice,
    Softmax,
    Step,
)

Place = tuple[int, int]  # buffer, column; buffer 0 is x, 1 is y, the others are scratch
_IDENTITY = parse("x")
_X, _Y, _SCRATCH = 0, 1, 2
_RESULT = ""  # the name of y; no step has it
# Row operations that may overwrite what they read: value by value, of one width.
_IN_PLACE = ("map", "combine", "affine", "layer", "rms", "l2", "softmax", "log_softmax", "where", "number")
# Operations that may apply a function to their result.
_WITH_FUNCTION = (
    "combine",
    "affine",
    "layer",
    "rms",
    "l2",
    "where",
    "number",
    "pick",
    "dot",
    "reduce",
    "repeat",
)


@dataclass
class Operation:
    """One product with its epilogue, one step row by row (`kind`), or several lookups. Values are named until they have
    places."""

    kind: str  # "product", "lookup", or that of a row operation
    source: str
    value: str
    width: int
    products: tuple[Linear | Gated, ...] = ()  # side by side, of the same input
    function: Formula = _IDENTITY
    combined: Combined | None = None
    then: Formula = _IDENTITY
    step: Step | None = None  # whose tensors and options it uses
    eps: float = 0.0
    column: int = 0  # of a copy: where in `value` it begins
    others: tuple[str, ...] = ()  # what else it reads
    lookups: tuple[Embedding | Bag, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        if self.lookups:
            return tuple(source for lookup in self.lookups for source in lookup.sources)
        combined = () if self.combined is None else (self.combined.other,)
        return (self.source, *combined, *self.others)

    @property
    def values(self) -> tuple[str, ...]:
        """The values that it makes."""
        return tuple(lookup.name for lookup in self.lookups) or (self.value,)


@dataclass(frozen=True)
class Placed:
    """The operations of a program with their places; the sizes of the scratch buffers."""

    operations: tuple[Operation, ...]
    places: Mapping[str, Place]
    scratch: tuple[int, ...]
    free_to_the_right: frozenset[int] = field(default_factory=frozenset)  # numbers of operations


def place(spec: MlpSpec, kind: Callable[[Linear | Gated], str] = lambda step: "") -> Placed:
    """Where every value lives. Only products whose weights are of one kind can become one."""
    return _Placement(spec, kind).run()


class _Placement:
    def __init__(self, spec: MlpSpec, kind: Callable[[Linear | Gated], str]) -> None:
        self.spec = spec
        self.kind = kind
        self.widths = dict(spec.widths_by_name)
        self.stages = join(spec, fuse(spec), self._stage, _followed_by)
        # A value that is a part of another one: (that value, the column at which it begins).
        self.inside: dict[str, tuple[str, int]] = {}
        self.operations: list[Operation] = []

    def run(self) -> Placed:
        self._make_operations()
        self._join_lookups()
        self._join_products()
        self._work_in_place()
        return self._assign_buffers()

    # ---- operations, and which values are parts of others ----

    def _make_operations(self) -> None:
        copies: dict[str, list[tuple[str, int]]] = {}
        for stage in self.stages:
            if isinstance(stage, Slice):
                self.inside[stage.name] = (stage.input, stage.start)
            elif isinstance(stage, Concat):
                copies[stage.name] = self._side_by_side(stage.name, stage.inputs)
        outputs = [output.value for output in self.spec.outputs]
        copies[_RESULT] = self._side_by_side(_RESULT, tuple(outputs))
        for stage in self.stages:
            if isinstance(stage, Concat):
                self._copy_into(stage.name, copies[stage.name])
            elif isinstance(stage, Operation):
                self.operations.append(stage)
        self._copy_into(_RESULT, copies[_RESULT])

    def _side_by_side(self, whole: str, parts: tuple[str, ...]) -> list[tuple[str, int]]:
        """Makes values parts of `whole` where they can be, and returns those that must be copied into it: inputs,
        slices, and values that are a part of something else already."""
        copied, column = [], 0
        for part in parts:
            if part == INPUT or part in self.inside:
                copied.append((part, column))
            else:
                self.inside[part] = (whole, column)
            column += self.widths[part]
        return copied

    def _copy_into(self, whole: str, parts: list[tuple[str, int]]) -> None:
        for part, column in parts:
            self.operations.append(Operation("map", part, whole, self.widths[part], column=column))

    def _stage(self, step: FusedStep) -> Operation | Slice | Concat:  # noqa: PLR0911 - a table of steps
        match step:
            case Slice() | Concat():
                return step
            case Embedding() | Bag():
                return Operation("lookup", step.input, step.name, self.widths[step.name], lookups=(step,))
            case Product():
                return Operation(
                    "product",
                    step.step.input,
                    step.name,
                    step.step.out_features,
                    (step.step,),
                    step.function,
                    step.combined,
                    step.then,
                )
            case Elementwise():
                return Operation("map", step.input, step.name, self.widths[step.name], then=step.formula)
            case Combine() | Compare():
                first, second = step.inputs
                combined = Combined(step.op, second, swapped=False)
                return Operation("combine", first, step.name, self.widths[step.name], combined=combined)
            case Norm():
                return Operation(
                    step.kind, step.input, step.name, self.widths[step.name], step=step, eps=step.eps
                )
            case Affine():
                return Operation("affine", step.input, step.name, self.widths[step.name], step=step)
            case Softmax():
                return Operation(step.op, step.input, step.name, self.widths[step.name])
            case _:  # row by row, by the name of the step
                first, *others = step.sources
                width = self.widths[step.name]
                return Operation(step.op, first, step.name, width, step=step, others=tuple(others))

    # ---- lookups become one operation as early as their ids are there: their cache misses overlap ----

    def _join_lookups(self) -> None:
        joined: list[Operation] = []
        written: dict[str, int] = {}  # by whole value: the last operation that writes to it
        for each in self.operations:
            after = max((written.get(self._resolve(source)[0], -1) for source in each.sources), default=-1)
            place = next((at for at in range(after + 1, len(joined)) if joined[at].lookups), None)
            if not each.lookups or place is None:
                place = len(joined)
                joined.append(each)
            else:
                joined[place] = replace(joined[place], lookups=joined[place].lookups + each.lookups)
            for value in each.values:
                whole = self._resolve(value)[0]
                written[whole] = max(written.get(whole, -1), place)
        self.operations = joined

    # ---- products of the same input with the same epilogue become one ----

    def _join_products(self) -> None:
        groups: dict[tuple[str, Formula, str], list[int]] = {}
        for number, each in enumerate(self.operations):
            if each.kind == "product" and each.combined is None and isinstance(each.products[0], Linear):
                key = each.source, each.function, self.kind(each.products[0])
                groups.setdefault(key, []).append(number)
        joined: dict[int, Operation] = {}
        gone: set[int] = set()
        for numbers in groups.values():
            for run in self._neighbours(numbers):
                operation = self._join([self.operations[number] for number in run])
                joined[min(run)] = operation  # all of them read only the same input
                gone.update(run)
        self.operations = [
            joined.get(number, each)
            for number, each in enumerate(self.operations)
            if number in joined or number not in gone
        ]

    def _neighbours(self, numbers: list[int]) -> list[list[int]]:
        """Runs of two or more operations whose values lie side by side, or may: those that are no part of anything."""
        free = [number for number in numbers if self.operations[number].value not in self.inside]
        runs = [free] if len(free) > 1 else []
        fixed = [number for number in numbers if number not in free]
        fixed.sort(key=lambda number: self.inside[self.operations[number].value])
        run: list[int] = []
        for number in fixed:
            if run and self._follows(run[-1], number):
                run.append(number)
                continue
            runs += [run] if len(run) > 1 else []
            run = [number]
        return runs + ([run] if len(run) > 1 else [])

    def _follows(self, first: int, second: int) -> bool:
        before, after = self.operations[first], self.operations[second]
        whole, column = self.inside[before.value]
        return self.inside[after.value] == (whole, column + before.width)

    def _join(self, parts: list[Operation]) -> Operation:
        name = f"{parts[0].value}\n{len(parts)}"  # no step has such a name
        width = sum(part.width for part in parts)
        if parts[0].value in self.inside:
            self.inside[name] = self.inside[parts[0].value]
        column = 0
        for part in parts:
            self.inside[part.value] = (name, column)
            column += part.width
        self.widths[name] = width
        products = tuple(product for part in parts for product in part.products)
        return replace(parts[0], value=name, width=width, products=products)

    # ---- row operations overwrite a source that nothing else reads ----

    def _work_in_place(self) -> None:
        made = {value for each in self.operations if each.column == 0 for value in each.values}
        reads: dict[str, int] = {}
        for each in self.operations:
            for source in each.sources:
                reads[source] = reads.get(source, 0) + 1
        parents = {
            parent for parent, _ in self.inside.values()
        }  # parts of a value may be read by other names
        for each in self.operations:
            if each.kind not in _IN_PLACE or each.value == _RESULT or each.column:
                continue
            for source in each.sources[:2]:
                if (
                    source in made
                    and source not in parents
                    and source not in self.inside
                    and reads[source] == 1
                ):
                    self.inside[source] = (each.value, 0)
                    break

    # ---- places ----

    def _resolve(self, value: str) -> tuple[str, int]:
        """The value that is no part of another one, and the column in it."""
        column = 0
        while value in self.inside:
            value, offset = self.inside[value]
            column += offset
        return value, column

    def _assign_buffers(self) -> Placed:
        written: dict[str, int] = {}
        needed: dict[str, int] = {}
        for number, each in enumerate(self.operations):
            for target in self._targets(each):
                written.setdefault(target, number)
            for value in (*each.values, *each.sources):
                needed[self._resolve(value)[0]] = number
        buffers = {INPUT: _X, _RESULT: _Y}
        scratch: list[int] = []
        free: list[int] = []
        for number, each in enumerate(self.operations):
            for target in self._targets(each):
                if written[target] == number and target not in buffers:
                    buffers[target] = _take(scratch, free, self.widths[target])
            # In order, as a set of names would not be: the plan must be the same in every process.
            ended = dict.fromkeys(self._resolve(value)[0] for value in (*each.values, *each.sources))
            free += [
                buffers[value] for value in ended if needed[value] == number and buffers[value] >= _SCRATCH
            ]
        places = {}
        for each in self.operations:
            for value in (*each.values, *each.sources):
                whole, column = self._resolve(value)
                places[value] = (buffers[whole], column)
        return Placed(tuple(self.operations), places, tuple(scratch), self._free_to_the_right())

    def _targets(self, operation: Operation) -> tuple[str, ...]:
        """The whole values that it writes to, each once."""
        return tuple(dict.fromkeys(self._resolve(value)[0] for value in operation.values))

    def _free_to_the_right(self) -> frozenset[int]:
        """The products that may write past the end of their value: nothing there has been written yet."""
        numbers = set()
        ends: dict[str, int] = {}  # of what has been written to each value
        for number, each in enumerate(self.operations):
            for value in each.values:
                whole, column = self._resolve(value)
                width = self.widths[value] if each.lookups else each.width
                end = column + each.column + width
                if each.kind == "product" and ends.get(whole, 0) <= end:
                    numbers.add(number)
                ends[whole] = max(ends.get(whole, 0), end)
        return frozenset(numbers)


def _take(scratch: list[int], free: list[int], width: int) -> int:
    """A free buffer, the smallest that is large enough or else the largest, which grows; a new one if none is free."""
    if not free:
        scratch.append(width)
        return len(scratch) - 1 + _SCRATCH
    size = {buffer: scratch[buffer - _SCRATCH] for buffer in free}
    fitting = [buffer for buffer in free if size[buffer] >= width]
    best = min(fitting, key=size.__getitem__) if fitting else max(free, key=size.__getitem__)
    free.remove(best)
    scratch[best - _SCRATCH] = max(size[best], width)
    return best


def _followed_by(before: Operation | Slice | Concat, step: FusedStep) -> Operation | None:
    """A row operation with the function after it; None if it takes none, or if its functions are too long for one."""
    if not isinstance(before, Operation) or not isinstance(step, Elementwise):
        return None
    if before.kind not in _WITH_FUNCTION:
        return None
    then = compose(before.then, step.formula)
    return None if then is None else replace(before, value=step.name, then=then)
