# SPDX-License-Identifier: Apache-2.0
"""Shared by the readers of ATen operators: one call of an operator, and the table that they register themselves in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.arithmetic import Operand
from fused_mlp.models.importers.building.builder import Builder
from fused_mlp.models.importers.building.nodes import Constant
from fused_mlp.models.importers.building.rows import Rows, reshaped

MIXES = "it mixes rows with features: the answer for a row must not depend on the rows beside it"


@dataclass(frozen=True)
class Call:
    """One node of the graph: the builder, how to make constants of tensors, and what torch knows of the result and of
    the first argument."""

    builder: Builder
    constant: Callable[[Tensor], Constant]
    made: Any
    given: Any = None

    def operand(self, value: Any) -> Operand:
        if isinstance(value, Tensor):
            return self.constant(value)
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            raise ModelLoadError("it computes with the number of rows: one row is answered as many are")
        return value if isinstance(value, Rows) else float(value)

    def tensor(self, value: Any) -> Constant:
        if not isinstance(value, Tensor):
            raise ModelLoadError("expected weights that do not depend on the rows")
        return self.constant(value)

    def optional(self, value: Any) -> Constant | None:
        return None if value is None else self.tensor(value)

    def shape(self, made: Any = None) -> tuple[list[int], int]:
        """The shape of the result for one row, and which axis is that of the rows."""
        sizes = list((self.made if made is None else made).shape)
        at = [axis for axis, size in enumerate(sizes) if isinstance(size, torch.SymInt)]
        if len(at) != 1:
            raise ModelLoadError(MIXES)
        return [one_row(size) for size in sizes], at[0]

    def view(self, x: Rows) -> Rows:
        return reshaped(x, *self.shape())


def one_row(value: Any) -> Any:
    """A size that depends on the number of rows, for one row; everything else as it is."""
    if isinstance(value, torch.SymInt):
        expression = value.node.expr
        symbols = list(expression.free_symbols)
        if len(symbols) != 1 or expression.subs(symbols[0], 0) != 0:
            raise ModelLoadError(MIXES)
        single = expression.subs(symbols[0], 1)
        if not single.is_integer or expression.subs(symbols[0], 2) != 2 * single:
            raise ModelLoadError(MIXES)
        return int(single)
    return value


Reader = Callable[..., Any]
_R = TypeVar("_R", bound=Reader)
OPERATORS: dict[str, Reader] = {}
# By name, as OPERATORS: how they read ids, instead of the floats that ids become for all others. They may return
# NotImplemented, to be given floats.
ON_IDS: dict[str, Reader] = {}


def _registering(table: dict[str, Reader]) -> Callable[..., Callable[[_R], _R]]:
    def reads(*names: str) -> Callable[[_R], _R]:
        def register(reader: _R) -> _R:
            table.update(dict.fromkeys(names, reader))
            return reader

        return register

    return reads


reads = _registering(OPERATORS)
reads_ids = _registering(ON_IDS)


@dataclass(frozen=True)
class RowNumbers:
    """0, step, 2 * step, ...: one number for each row. Bags of `step` ids each start there; nothing else reads them.
    `place`: where they are made."""

    step: int
    place: str


def listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def matrix(call: Call, value: Any) -> Rows | Constant:
    return call.constant(value) if isinstance(value, Tensor) else value
