# SPDX-License-Identifier: Apache-2.0
"""Synthetic rows for a model with named inputs: ids over whole tables, floats around those of the example. Knows only
what GetModel says of a model."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fused_mlp.service.client import InputInfo, VersionInfo


class NoRows(Exception):
    """Rows must be given; the text says why."""


def made_up(version: VersionInfo, count: int, rows: int) -> list[dict[str, NDArray[Any]]]:
    """`count` requests of `rows` rows. Raises NoRows."""
    rng = np.random.default_rng(0)
    return [{each.name: _values(each, rng, rows) for each in version.inputs} for _ in range(count)]


def rows_of(x: Any) -> int:
    """x: (rows, width), or arrays of as many rows by name."""
    return len(next(iter(x.values())) if isinstance(x, Mapping) else x)


def _values(each: InputInfo, rng: np.random.Generator, rows: int) -> NDArray[Any]:
    width = prod(each.shape)
    if each.kind == "float":
        around = np.resize(np.array(each.example or (0.0,), np.float32), width)
        floats = around + rng.normal(0, float(around.std()) or 1.0, (rows, width)) / 2
        return floats.astype(np.float32 if each.datatype[0] in "FB" else np.int64)
    if each.tables and not each.vocabulary:
        return rng.integers(0, min(each.tables), (rows, width))
    if each.example:
        return np.tile(np.array(each.example, object if each.kind == "string" else np.int64), (rows, 1))
    raise NoRows(f"the vocabulary of input {each.name!r} is not known; give rows with --input")
