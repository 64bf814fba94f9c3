# SPDX-License-Identifier: Apache-2.0
"""Rows that an import is checked with: random floats of several scales, ids over whole tables and beyond them where the
model has a rule for that, bags of padding alone, NaN and infinities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.program.inputs import FLOATS, Add, Clip, Field, Input, Modulo, Replace, apply_rules
from fused_mlp.models.program.spec import MlpSpec
from fused_mlp.models.program.steps import Bag

# Rows of each scale: the middle, where functions bend, and the tails, where they have their limits. A wide program gets
# the first few of them alone.
SCALES = (30.0, 1.0, 4.0, 0.01, 1e4, 1e8)
_TAILS = (3.0, 1e4, 1e8)
ROWS = 5  # of each
_GROUPS = len(SCALES) + 2 * len(_TAILS) + 1
_MAX_VALUES = 1 << 24  # of all rows: running a program keeps all its values
_CANDIDATES = 64
_MAX_PLACES = 12  # where NaN and infinities are tried
_SPECIAL = (np.nan, np.inf, -np.inf)
_NOW = 1_760_000_000  # a time in seconds
_FAR = (1 << 40, -(1 << 40))


@dataclass(frozen=True)
class Probes:
    """`record`: (rows, in_features) float64. `given`: the same rows as the model takes them, an array for each input,
    (rows, values of a row). `floats`: which words of the record are floats, `whole`: which of these are rounded whole
    numbers."""

    record: NDArray[np.float64]
    given: tuple[NDArray[Any], ...]
    floats: NDArray[np.bool_]
    whole: NDArray[np.bool_]

    def moved(self, share: float) -> NDArray[np.float64]:
        """The record with its floats changed by that share of themselves, and whole numbers by what rounds them."""
        rounded = self.whole & (np.abs(self.record) >= 1 << 24)
        moved: NDArray[np.float64] = self.record * (1 + np.where(rounded, 2.0**-24, self.floats * share))
        return moved


def draw(spec: MlpSpec, values: int = 0) -> Probes:
    """`values`: of a row, in the source, if it has more than the program."""
    values = max(values, sum(spec.widths_by_name.values()))
    groups = min(_GROUPS, max(2, _MAX_VALUES // (ROWS * values)))
    if spec.inputs is None:
        rows = _random_floats(spec.in_features, groups)
        return _packed(spec, (rows,))
    generator = np.random.default_rng(1)
    bags = [step for step in spec.steps if isinstance(step, Bag) and step.padding is not None]
    padding = list(dict.fromkeys(step.padding for step in bags if step.padding is not None))
    return _packed(spec, [_values(each, generator, padding, groups) for each in spec.inputs])


def _packed(spec: MlpSpec, given: Sequence[NDArray[Any]]) -> Probes:
    floats, whole = np.ones(spec.in_features, np.bool_), np.zeros(spec.in_features, np.bool_)
    if spec.inputs is None:
        return Probes(given[0], tuple(given), floats, whole)
    for part in spec.record:
        floats[part.start : part.stop] = part.field.kind == "float"
        whole[part.start : part.stop] = part.field.kind == "float" and part.input.dtype not in FLOATS
    parts = [each.pack(values) for each, values in zip(spec.inputs, given, strict=True)]
    return Probes(np.concatenate(parts, axis=1).astype(np.float64), tuple(given), floats, whole)


def with_close_numbers(spec: MlpSpec, probes: Probes) -> Probes | None:
    """Rows whose large whole numbers lie close to each other, as times do; None if no input has some."""
    generator = np.random.default_rng(3)
    given = [values[ROWS : 2 * ROWS].copy() for values in probes.given]
    times = [
        (each.width, values)
        for each, values in zip(spec.inputs or (), given, strict=False)
        if each.dtype in ("int32", "int64") and each.kind == "float" and each.vocabulary is None
    ]
    for width, values in times:
        values[:] = _NOW + generator.integers(0, 1 << 17, (ROWS, width))
    return _packed(spec, given) if times else None


def with_special_floats(spec: MlpSpec, probes: Probes) -> Probes:
    """Rows with NaN or an infinity in one float, and with NaN in half of them."""
    inputs = spec.inputs or (Input(name="input", shape=(spec.in_features,)),)
    places = [(at, place) for at, each in enumerate(inputs) for place in _plain_floats(each)]
    generator = np.random.default_rng(2)
    most = min(_MAX_PLACES, max(1, (len(probes.record) - ROWS) // len(_SPECIAL)))
    if len(places) > most:
        places = [places[at] for at in np.linspace(0, len(places) - 1, most).astype(int)]
    changes = [([place], value) for place in places for value in _SPECIAL]
    changes += [([each for each in places if generator.random() < 0.5], np.nan) for _ in range(ROWS)]
    given = [values[ROWS + np.arange(len(changes)) % ROWS] for values in probes.given]  # of the scale 1
    for row, (changed, value) in enumerate(changes):
        for at, place in changed:
            given[at][row, place] = value
    return _packed(spec, given)


def _plain_floats(each: Input) -> list[int]:
    """The positions of an input that are read as floats alone."""
    if each.dtype not in FLOATS:
        return []
    taken = {
        place
        for field in each.fields
        if field.kind == "id" or field.rules
        for place in (range(each.width) if field.positions is None else field.positions)
    }
    return [place for place in range(each.width) if place not in taken]


def beyond(spec: MlpSpec, probes: Probes) -> Iterator[tuple[Input, int, tuple[NDArray[Any], ...]]]:
    """One row for each input with ids, with an id above those that its table has: (input, id, row)."""
    for at, each in enumerate(spec.inputs or ()):
        for field in each.fields:
            if field.size is None or each.vocabulary is not None:
                continue
            position = 0 if field.positions is None else field.positions[0]
            high = np.array([field.size, 2 * field.size, *_FAR[:1]]) - _added(field)
            refused = [
                value
                for value in high.tolist()
                if value <= _range(each)[1] and not _accepted(each, position, np.array([value])).any()
            ]
            if refused:
                row = [values[:1].copy() for values in probes.given]
                row[at][0, position] = refused[0]
                yield each, refused[0], tuple(row)
                break


def _random_floats(width: int, groups: int) -> NDArray[np.float64]:
    """(rows, width): `groups` of rows, those of scale 1 second."""
    generator = np.random.default_rng(0)
    rows = [generator.normal(0, scale, (ROWS, width)) for scale in SCALES[:groups]]
    # All of one sign: half of a random row's products cancel out, these drive whole layers into one tail.
    for scale in _TAILS if groups > len(SCALES) else ():
        rows += [np.abs(rows[1]) * scale, -np.abs(rows[1]) * scale]
    if groups == _GROUPS:
        rows.append(generator.uniform(0.01, 1, (ROWS, width)))
    # Rounded, so that a source that computes in float32 is given the same numbers.
    return np.concatenate(rows[:groups]).astype(np.float32).astype(np.float64)


def _values(each: Input, generator: np.random.Generator, padding: Sequence[int], groups: int) -> NDArray[Any]:
    """(rows, values of a row) of one input, all of which it accepts."""
    drawn = _random_floats(each.width, groups)
    is_float = each.dtype.startswith(("float", "bfloat"))
    values = drawn if is_float else np.zeros(drawn.shape, np.int64)
    for position in range(each.width):
        fields = [field for field in each.fields if field.positions is None or position in field.positions]
        if is_float and all(field.kind == "float" and not field.rules for field in fields):
            continue
        found = _candidates(each, fields, generator)
        found = found[_accepted(each, position, found)]
        if not found.size:
            raise ModelLoadError(
                f"input {each.name!r}: no id that was tried is one of its tables; please report it"
            )
        picked = generator.choice(found, len(values))
        picked[:3] = found.min(), found.max(), found[0]
        special = [value for value in dict.fromkeys((0, *padding)) if value in found][: len(picked) - 3]
        picked[3 : 3 + len(special)] = special  # whole bags of it
        values[:, position] = picked + (0.25 if is_float else 0) * (picked > 0)
    if each.vocabulary is not None:
        return _words(each)[values]
    made: NDArray[Any] = values != 0 if each.dtype == "bool" else values
    return made


def _words(each: Input) -> NDArray[Any]:
    """The word of each place in a vocabulary, and one that it does not have."""
    known = each.vocabulary or ()
    other: str | int = "a word that is not known"
    if each.dtype != "string":
        other = max(number for number in known if isinstance(number, int)) + 1
    while other in known and isinstance(other, str):
        other += "?"
    made = np.array([*known, other], object)
    return made if each.dtype == "string" else made.astype(np.int64)


def _candidates(each: Input, fields: Sequence[Field], generator: np.random.Generator) -> NDArray[np.int64]:
    """Numbers that a position might take: the ends of its tables, around the numbers of its rules, far out."""
    if each.vocabulary is not None:
        return np.arange(len(each.vocabulary) + (each.unknown is not None))
    least, most = _range(each)
    found = [np.array([0, 1, -1, *_FAR]), generator.integers(-100, 1000, _CANDIDATES)]
    for field in fields:
        size = field.size or 1000
        around = [0, -_added(field)]
        for rule in field.rules:
            if isinstance(rule, Clip):
                around += [rule.least, rule.most]
            elif isinstance(rule, Replace):
                found.append(np.array([rule.found]))
            elif isinstance(rule, Modulo):
                size = max(size, rule.divisor)
        for start in around:
            if abs(start) < 1 << 62:
                found += [
                    np.array([start, start + size - 1, start - 1, start + 1]),
                    start + generator.integers(0, size, _CANDIDATES),
                    start + generator.integers(-size, 2 * size, _CANDIDATES // 2),
                ]
    everything = np.concatenate(found)
    return everything[(everything >= least) & (everything <= most)]


def _range(each: Input) -> tuple[int, int]:
    """The range of an input's dtype."""
    if each.dtype == "bool":
        return 0, 1
    bits = np.iinfo(each.dtype if each.dtype.startswith(("int", "uint")) else np.int32)
    return int(bits.min), int(bits.max)


def _accepted(each: Input, position: int, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of these an input takes there."""
    fine = np.ones(numbers.shape, np.bool_)
    for field in each.fields:
        if field.size is None or (field.positions is not None and position not in field.positions):
            continue
        at = position if field.positions is None else field.positions.index(position)
        rules = tuple(
            Add(values=rule.values[at : at + 1]) if isinstance(rule, Add) and len(rule.values) > 1 else rule
            for rule in field.rules
        )
        made = apply_rules(rules, numbers)
        fine &= (made >= 0) & (made < field.size)
    return fine


def _added(field: Field) -> int:
    return sum(rule.values[0] for rule in field.rules if isinstance(rule, Add))
