# SPDX-License-Identifier: Apache-2.0
"""A program with ids as two: the lookups, which make a dense row of a record, and the rest, whose input that row is.
For backends whose other kernels know floats alone. Knows nothing of devices; imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from fused_mlp.models import Mlp, MlpSpec
from fused_mlp.models.program.spec import INPUT
from fused_mlp.models.program.steps import (
    Affine,
    Bag,
    Combine,
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

_OF_FLOATS = (Linear, Gated, Elementwise, Norm, Affine, Softmax, Combine, Concat, Slice)


@dataclass(frozen=True)
class Part:
    """Columns of the dense row: `features` from `column` on. They are floats of the record, or the sum, mean or maximum
    of rows of a table, for `count` ids from `word` on. `factors`: the first word of one float per id, or -1."""

    column: int
    word: int
    count: int
    features: int
    table: str = ""  # the tensor; "" for floats
    mode: Literal["sum", "mean", "max"] = "sum"
    padding: int = -1
    factors: int = -1


@dataclass(frozen=True)
class Lookups:
    parts: tuple[Part, ...]
    rest: MlpSpec

    def rest_of(self, mlp: Mlp) -> Mlp:
        """The model without its tables."""
        tensors, wanted = mlp.tensors(), dict(self.rest.shapes())
        return Mlp(self.rest, {name: tensors[name] for name in wanted})

    @property
    def tables(self) -> tuple[str, ...]:
        """The tensors of all tables, each once."""
        return tuple(dict.fromkeys(part.table for part in self.parts if part.table))


def unsupported(spec: MlpSpec) -> str | None:
    """Why a backend of lookups and floats cannot run a program, or None."""
    for step in spec.steps:
        if not isinstance(step, (*_OF_FLOATS, Embedding, Bag)):
            return f"it has no {step.op}, which step {step.name!r} is"
    try:
        lookups_of(spec)
    except ValueError as error:
        return str(error)
    return None


@lru_cache(64)
def lookups_of(spec: MlpSpec) -> Lookups | None:
    """None for a program without ids. ValueError for one whose ids are not side by side in the record."""
    if not any(part.field.kind == "id" for part in spec.record):
        return None
    door = dict(_door_values(spec))
    columns = _columns(spec, door)
    parts = [
        part
        for name, at in columns.items()
        for part in _parts(door[name], at, {step.name: step for step in spec.steps})
    ]
    width = sum(spec.widths_by_name[name] for name in columns)
    return Lookups(tuple(parts), _rest(spec, columns, width))


def _door_values(spec: MlpSpec) -> Iterator[tuple[str, Step]]:
    """The values that are made of the record alone and that others read: floats of it, and lookups."""
    for step in spec.steps:
        of_record = isinstance(step, Slice) and step.input == INPUT
        if isinstance(step, (Embedding, Bag)) or (of_record and spec.kinds_by_name[step.name] == "float"):
            yield step.name, step


def _columns(spec: MlpSpec, door: dict[str, Step]) -> dict[str, int]:
    """Where each of them begins: side by side as the first concat wants them, so that it copies nothing."""
    used = {source for step in spec.steps if step.name not in door for source in step.sources}
    used |= {output.value for output in spec.outputs}
    order: dict[str, None] = {}
    for step in spec.steps:
        if isinstance(step, Concat):
            order.update(dict.fromkeys(name for name in step.inputs if name in door))
    order.update(dict.fromkeys(name for name in door if name in used))
    columns, at = {}, 0
    for name in order:
        columns[name] = at
        at += spec.widths_by_name[name]
    return columns


def _parts(step: Step, column: int, steps: dict[str, Step]) -> Iterator[Part]:
    if isinstance(step, Slice):
        width = step.stop - step.start
        yield Part(column, step.start, width, width)
    elif isinstance(step, Embedding):
        for at, word in enumerate(_words(step.input, steps)):
            yield Part(column + at * step.features, word, 1, step.features, f"{step.prefix}.weight")
    elif isinstance(step, Bag):
        words = _words(step.input, steps)
        factors = [] if step.factors is None else _words(step.factors, steps)
        for run in filter(None, (words, factors)):
            if run != list(range(run[0], run[0] + len(run))):
                raise ValueError(f"the ids of step {step.name!r} are not side by side in the record")
        yield Part(
            column,
            words[0],
            len(words),
            step.features,
            f"{step.prefix}.weight",
            step.mode,
            -1 if step.padding is None else step.padding,
            factors[0] if factors else -1,
        )


def _words(name: str, steps: dict[str, Step]) -> list[int]:
    """The words of the record that a value is."""
    step = steps.get(name)
    if isinstance(step, Slice):
        inside = None if step.input == INPUT else _words(step.input, steps)
        return list(range(step.start, step.stop)) if inside is None else inside[step.start : step.stop]
    if isinstance(step, Concat):
        return [word for source in step.inputs for word in _words(source, steps)]
    raise ValueError(f"{name!r} is computed: only ids and factors of the record are looked up")


def _rest(spec: MlpSpec, columns: dict[str, int], width: int) -> MlpSpec:
    """The steps after the lookups. Values of the dense row are slices of it, and all of it is the input itself."""
    whole: dict[str, str] = {}  # values that are the whole dense row
    steps: list[Step] = []
    for step in spec.steps:
        if spec.kinds_by_name[step.name] == "id":
            continue
        place = columns.get(step.name)
        size = spec.widths_by_name[step.name]
        if isinstance(step, Concat) and all(source in columns for source in step.inputs):
            starts = [columns[source] for source in step.inputs]
            sizes = [spec.widths_by_name[source] for source in step.inputs]
            if all(
                start + wide == after for start, wide, after in zip(starts, sizes, starts[1:], strict=False)
            ):
                place = starts[0]
        if place == 0 and size == width:
            whole[step.name] = INPUT
        elif place is not None:
            steps.append(Slice(name=step.name, input=INPUT, start=place, stop=place + size))
        elif step.name not in columns and not isinstance(step, (Embedding, Bag)):
            steps.append(_renamed(step, whole))
    outputs = tuple(
        output.model_copy(update={"value": whole.get(output.value, output.value)}) for output in spec.outputs
    )
    read = {output.value for output in outputs}
    kept = []
    for step in reversed(steps):
        if step.name in read:
            kept.append(step)
            read.update(step.sources)
    return MlpSpec(
        in_features=width,
        steps=tuple(reversed(kept)),
        outputs=outputs,
        dtype=spec.dtype,
        labels=spec.labels,
        description=spec.description,
    )


def _renamed(step: Step, names: dict[str, str]) -> Step:
    fields = step.model_dump()
    for key in ("input", "inputs"):
        if key in fields:
            given = fields[key]
            fields[key] = (
                names.get(given, given)
                if isinstance(given, str)
                else tuple(names.get(name, name) for name in given)
            )
    return type(step).model_validate(fields)
