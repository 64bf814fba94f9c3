# SPDX-License-Identifier: Apache-2.0
"""The named inputs of a program, and the record that a row of them becomes: 4-byte words, floats as they are and ids in
the bits of 32-bit integers. Owns what an input accepts and how it is checked and narrowed; the C++ decoders do the same
from the same description. Programs read a record as one value, `input`, and its parts as slices of it."""

# Annotations are no texts here: pydantic would evaluate each of them, at the start of every server.
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Constrained
from pydantic import model_validator

from fused_mlp.models.program.steps.base import LIST, MAX_WIDTH, Frozen, Kind, Name, Tagged, Width
from fused_mlp.models.program.steps.lookups import ABSENT, Size

InputDtype = Literal[
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "string"
]
FLOATS = ("float32", "float64", "float16", "bfloat16")
MAX_INPUTS = 1024
MAX_VOCABULARY = 1 << 22
Whole = Annotated[int, Constrained(ge=-(1 << 63), lt=1 << 63)]
Position = Annotated[int, Constrained(ge=0)]
Positive = Annotated[int, Constrained(ge=1, lt=1 << 63)]


class InputError(ValueError):
    """Values that an input does not accept; one line."""


class Add(Tagged):
    """value + values: one number for all positions of an input, or one for each."""

    op: Literal["add"] = "add"
    values: Annotated[tuple[Whole, ...], Constrained(min_length=1, max_length=1 << 20), LIST]


class Multiply(Tagged):
    """value * factor, as a hash begins."""

    op: Literal["multiply"] = "multiply"
    factor: Whole


class Divide(Tagged):
    """floor(value / divisor)."""

    op: Literal["divide"] = "divide"
    divisor: Positive


class Modulo(Tagged):
    """The remainder of that division, from 0 to divisor - 1; `truncated`: with the sign of the value, as in C."""

    op: Literal["modulo"] = "modulo"
    divisor: Positive
    truncated: bool = False


class Clip(Tagged):
    op: Literal["clip"] = "clip"
    least: Whole
    most: Whole


class Replace(Tagged):
    """`by` for every value that is `found`: padding of -1, a missing category."""

    op: Literal["replace"] = "replace"
    found: Whole
    by: Whole


# A rule changes whole numbers before they are looked up or become floats. In 64 bits, which wrap around.
Rule = Annotated[Add | Multiply | Divide | Modulo | Clip | Replace, Constrained(discriminator="op")]


class Field(Frozen):
    """One reading of an input: a word of the record for each value that it reads. `positions`: which of the input's
    values these are, None: all of them. `size`: ids are from 0 to size - 1 once the rules were applied; anything else
    is refused."""

    kind: Kind = "float"
    size: Size | None = None
    rules: Annotated[tuple[Rule, ...], Constrained(max_length=16), LIST] = ()
    positions: (
        Annotated[tuple[Position, ...], Constrained(min_length=1, max_length=MAX_WIDTH), LIST] | None
    ) = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.kind == "id") != (self.size is not None):
            raise ValueError(f"size: ids have one and floats have none, got {self.size} for {self.kind}")
        return self


class Input(Frozen):
    """The values that a caller sends under a name. `shape` is that of one row, () for one value; `dtype` is the
    model's own. Ids and rules of floats are those of the floats cut off at the point, as `x.long()` does.
    `ragged`: a row may have fewer values than the shape (of one axis) says. `vocabulary`: the values that are known;
    each stands for its place in it, and all others for `unknown`, or are refused. `fields`: what a record has of it."""

    name: Name
    dtype: InputDtype = "float32"
    shape: Annotated[tuple[Width, ...], Constrained(max_length=8), LIST] = ()
    ragged: bool = False
    vocabulary: Annotated[tuple[str | int, ...], Constrained(max_length=MAX_VOCABULARY), LIST] | None = None
    unknown: Annotated[int, Constrained(ge=0)] | None = None
    fields: Annotated[tuple[Field, ...], Constrained(min_length=1, max_length=MAX_INPUTS), LIST] = (Field(),)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.dtype in FLOATS and self.vocabulary is not None:
            raise ValueError(f"input {self.name!r}: vocabularies are for whole numbers, not {self.dtype}")
        if (self.dtype == "string") > (self.vocabulary is not None):
            raise ValueError(f"input {self.name!r}: strings need a vocabulary")
        if self.unknown is not None and self.vocabulary is None:
            raise ValueError(f"input {self.name!r}: unknown goes with a vocabulary")
        kind = str if self.dtype == "string" else int
        if self.vocabulary is not None and any(type(each) is not kind for each in self.vocabulary):
            raise ValueError(f"input {self.name!r}: expected a vocabulary of {kind.__name__}")
        if self.vocabulary is not None and len(set(self.vocabulary)) != len(self.vocabulary):
            raise ValueError(f"input {self.name!r}: a word is twice in its vocabulary")
        if self.ragged and len(self.shape) != 1:
            raise ValueError(f"input {self.name!r}: a ragged row has one axis, got shape {self.shape}")
        for field in self.fields:
            width = self.width_of(field)
            if field.positions is not None and max(field.positions) >= self.width:
                raise ValueError(
                    f"input {self.name!r}: there is no position {max(field.positions)} of {self.width}"
                )
            if field.positions is not None and self.ragged:
                raise ValueError(f"input {self.name!r}: a ragged row has no fixed positions")
            for rule in field.rules:
                if isinstance(rule, Add) and len(rule.values) not in (1, width):
                    raise ValueError(
                        f"input {self.name!r}: {len(rule.values)} numbers to add to {width} values"
                    )
        return self

    def width_of(self, field: Field) -> int:
        """Words of a record that a field has."""
        return self.width if field.positions is None else len(field.positions)

    @property
    def width(self) -> int:
        """Values of one row."""
        return math.prod(self.shape)

    @property
    def words(self) -> int:
        return sum(map(self.width_of, self.fields))

    @property
    def kind(self) -> Literal["float", "id", "string"]:
        """For people."""
        if self.dtype == "string":
            return "string"
        return "id" if any(field.kind == "id" for field in self.fields) else "float"

    @cached_property
    def _places(self) -> dict[str | int, int]:
        return {word: place for place, word in enumerate(self.vocabulary or ())}

    def pack(self, given: Any) -> NDArray[np.float32]:
        """given: (rows, *shape), or (rows, fewer) of a ragged one -> (rows, words). Raises InputError."""
        # Arrays of fixed-size strings would lose zero bytes at the end.
        values = np.asarray(given, object if self.dtype == "string" else None)
        values = self._reshaped(values)
        if self.dtype in FLOATS:
            floats = self._as_floats(values)
            numbers, there = self._cut_off(floats)
        else:
            floats = None
            numbers, there = self._padded(self._as_numbers(values))
        parts = []
        for field in self.fields:
            columns = _columns(field)
            if floats is not None and field.kind == "float" and not field.rules:
                parts.append(floats[:, columns])
                continue
            made, here = apply_rules(field.rules, numbers[:, columns]), there[:, columns]
            if field.size is None:
                parts.append(np.where(here, made, 0).astype(np.float32))
                continue
            self.check_ids(made, here, field)
            parts.append(np.where(here, made, ABSENT).astype(np.int32).view(np.float32))
        return np.concatenate(parts, axis=1)

    def check_ids(self, ids: NDArray[np.int64], there: NDArray[np.bool_], field: Field) -> None:
        """ids: (rows, values that the field reads). Raises InputError for the first that is there and in no table."""
        assert field.size is not None
        wrong = there & ((ids < 0) | (ids >= field.size))
        if self.ragged:
            wrong &= ids != ABSENT
        if wrong.any():
            row, place = np.argwhere(wrong)[0]
            position = place if field.positions is None else field.positions[place]
            at = f"row {row}, position {position}" if self.width > 1 else f"row {row}"
            raise InputError(
                f"input {self.name!r}, {at}: expected an id from 0 to {field.size - 1}, got {ids[row, place]}"
            )

    def _cut_off(self, floats: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """As `_padded`. NaN and what 64 bits cannot hold become the least number, which no table has."""
        with np.errstate(invalid="ignore"):
            fits = np.abs(floats) < 2.0**63
            numbers = np.where(fits, floats, -(2.0**63)).astype(np.int64)
        return numbers, np.ones(floats.shape, np.bool_)

    def _reshaped(self, values: NDArray[Any]) -> NDArray[Any]:
        """(rows, values of a row)."""
        rows = values.shape[0] if values.ndim else 0
        shape = values.shape[1:]
        short = self.ragged and len(shape) == 1 and shape[0] <= self.width
        if values.ndim == 0 or not (shape in (self.shape, (self.width,)) or short):
            expected = ", ".join(["rows", *map(str, self.shape)])
            raise InputError(f"input {self.name!r}: expected shape ({expected}), got {values.shape}")
        return values.reshape(rows, -1)

    def _as_floats(self, values: NDArray[Any]) -> NDArray[np.float32]:
        if values.dtype.kind not in "fiubV":
            raise InputError(f"input {self.name!r}: expected numbers, got {values.dtype}")
        floats = values.astype(np.float32)
        short = self.width - floats.shape[1]
        return np.pad(floats, ((0, 0), (0, short))) if short else floats

    def _as_numbers(self, values: NDArray[Any]) -> NDArray[np.int64]:
        kinds, wanted = ("USO", "strings") if self.dtype == "string" else ("iub", "whole numbers")
        if values.dtype.kind not in kinds:
            raise InputError(f"input {self.name!r}: expected {wanted}, got {values.dtype}")
        if values.dtype == np.uint64 and (large := values[values >= 1 << 63]).size:
            raise InputError(f"input {self.name!r}: expected whole numbers below 2^63, got {large[0]}")
        if self.vocabulary is None:
            return values.astype(np.int64)
        word = _text if self.dtype == "string" else int
        places = [self._place(word(each)) for each in values.reshape(-1)]
        return np.array(places, np.int64).reshape(values.shape)

    def _place(self, word: str | int) -> int:
        place = self._places.get(word, self.unknown)
        if place is None:
            raise InputError(
                f"input {self.name!r}: {str(word)[:80]!r} is not in its vocabulary of {len(self._places)}"
            )
        return place

    def _padded(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """(values, which are there): as wide as the input."""
        rows, given = numbers.shape
        there = np.zeros((rows, self.width), np.bool_)
        there[:, :given] = True
        return np.pad(numbers, ((0, 0), (0, self.width - given))), there


class RecordPart(NamedTuple):
    """Where a field of an input is: words [start, stop) of a record."""

    input: Input
    field: Field
    start: int
    stop: int


def record_of(inputs: tuple[Input, ...]) -> tuple[RecordPart, ...]:
    """Input by input, field by field."""
    parts, at = [], 0
    for each in inputs:
        for field in each.fields:
            width = each.width_of(field)
            parts.append(RecordPart(each, field, at, at + width))
            at += width
    return tuple(parts)


def by_name(inputs: tuple[Input, ...], given: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any]:
    """The values of exactly these inputs. Raises InputError."""
    names = [each.name for each in inputs]
    expected = ", ".join(map(repr, names))
    if not isinstance(given, Mapping):
        if len(given) != len(names):
            raise InputError(f"expected {len(names)} inputs, {expected}, got {len(given)}")
        return dict(zip(names, given, strict=True))
    for name in given:
        if name not in names:
            raise InputError(f"input {str(name)[:80]!r} is unknown: expected {expected}")
    for name in names:
        if name not in given:
            raise InputError(f"input {name!r} is missing: expected {expected}")
    return given


def pack_rows(inputs: tuple[Input, ...], given: Mapping[str, Any] | Sequence[Any]) -> NDArray[np.float32]:
    """given: what `Input.pack` takes, by name or in the order of the inputs -> (rows, words). Raises InputError."""
    given = by_name(inputs, given)
    names = [each.name for each in inputs]
    parts = [each.pack(given[each.name]) for each in inputs]
    for name, part in zip(names, parts, strict=True):
        if len(part) != len(parts[0]):
            raise InputError(
                f"inputs of different rows: {len(parts[0])} of {names[0]!r}, {len(part)} of {name!r}"
            )
    return np.concatenate(parts, axis=1)


def check_ids(record: tuple[RecordPart, ...], rows: NDArray[np.float32]) -> None:
    """rows: packed records, float32. Raises InputError for the first id that is no row of its table."""
    for part in record:
        if part.field.size is not None:
            words = np.ascontiguousarray(rows[:, part.start : part.stop], np.float32)
            ids = words.view(np.int32).astype(np.int64)
            part.input.check_ids(ids, np.ones(ids.shape, np.bool_), part.field)


def spread_ids(record: tuple[RecordPart, ...], rows: NDArray[np.float32], first: int = 0) -> None:
    """Writes ids to the words of `rows` that hold some: over each whole table, both ends included, and some absent from
    bags. The same for the same `first`."""
    for part in record:
        if part.field.size is None:
            continue
        count = len(rows) * (part.stop - part.start)
        numbers = np.arange(first, first + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        ids = ((numbers >> np.uint64(33)) % np.uint64(part.field.size)).astype(np.int32)
        ids[:2] = (0, part.field.size - 1)[:count]
        if part.input.ragged:
            ids[2::3] = ABSENT
        rows[:, part.start : part.stop] = ids.reshape(len(rows), -1).view(np.float32)


def _columns(field: Field) -> Any:
    return slice(None) if field.positions is None else list(field.positions)


def apply_rules(rules: tuple[Any, ...], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """numbers: (rows, values that a field reads)."""
    with np.errstate(over="ignore"):
        for rule in rules:
            match rule:
                case Add():
                    numbers = numbers + np.array(rule.values, np.int64)
                case Multiply():
                    numbers = numbers * np.int64(rule.factor)
                case Divide():
                    numbers = numbers // rule.divisor
                case Modulo():
                    numbers = np.fmod(numbers, rule.divisor) if rule.truncated else numbers % rule.divisor
                case Clip():
                    numbers = np.clip(numbers, rule.least, rule.most)
                case Replace():
                    numbers = np.where(numbers == rule.found, rule.by, numbers)
    return numbers


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
