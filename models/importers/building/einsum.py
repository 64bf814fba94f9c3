# SPDX-License-Identifier: Apache-2.0
"""An einsum of rows and one constant, or of two values of one row, as the products that it is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.builder import Builder
from fused_mlp.models.importers.building.nodes import Constant
from fused_mlp.models.importers.building.rows import Rows, inserted, permuted, reshaped


def einsum(builder: Builder, equation: str, operands: Sequence[Rows | Constant]) -> Rows:
    """`bi,oi->bo` and its relatives: letters that both have and the result has not are summed over."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    rows = [each for each in operands if isinstance(each, Rows)]
    if len(terms) != 2 or len(operands) != 2 or not arrow:
        raise ModelLoadError(f"{equation!r}: expected two values, with `->`")
    if len(rows) == 2:
        return _computed(builder, equation, (rows[0], rows[1]), (terms[0], terms[1]), out)
    at = 0 if isinstance(operands[0], Rows) else 1
    x, constant = rows[0], operands[1 - at]
    assert isinstance(constant, Constant)
    own, other = _spelled(terms[at], x.index.ndim), terms[1 - at]
    if "..." in terms[at]:
        ahead = own[: len(own) - len(terms[at].replace("...", ""))]
        out = out.replace("...", ahead)
    if "..." in other + out or len(set(own)) != len(own) or len(set(other)) != len(other):
        raise ModelLoadError(f"{equation!r}: expected each letter once in a term")
    summed = [letter for letter in own if letter in other and letter not in out]
    if any(letter not in out and letter not in other for letter in own) or own[x.rows_at] in other:
        raise ModelLoadError(f"{equation!r}: it sums over rows, or over letters of one term alone")
    shared = [letter for letter in own if letter in other and letter in out]
    kept = [letter for letter in own if letter not in other]
    new = [letter for letter in other if letter not in own]
    # As a batched product: (shared..., kept, summed) times (shared..., summed, new).
    x = permuted(x, [own.index(letter) for letter in (*shared, *kept, *summed)])
    sizes = {letter: x.shape[axis] for axis, letter in enumerate((*shared, *kept, *summed))}
    array = constant.array.transpose([other.index(letter) for letter in (*shared, *summed, *new)])
    sizes |= dict(zip((*shared, *summed, *new), array.shape, strict=True))
    rows_letter = own[rows[0].rows_at]
    if not shared or kept == [rows_letter]:
        return _product(builder, x, constant.of(array), (shared, kept, summed, new, list(out)), sizes)
    raise ModelLoadError(f"{equation!r}: a batched product over several axes is not read")


def _computed(
    builder: Builder, equation: str, rows: tuple[Rows, Rows], terms: tuple[str, str], out: str
) -> Rows:
    """An einsum of two computed values: a matrix product where possible, else products that are added up."""
    letters = [*out, *dict.fromkeys(letter for term in terms for letter in term if letter not in out)]
    if "." in "".join((*terms, out)) or any(len(set(term)) != len(term) for term in terms):
        raise ModelLoadError(f"{equation!r}: expected each letter once in a term")
    if any(letter not in terms[0] + terms[1] for letter in out):
        raise ModelLoadError(f"{equation!r}: expected letters of the terms in the result")
    builder.check_attention(*rows)
    spread = []
    for term, x in zip(terms, rows, strict=True):
        there = [letter for letter in letters if letter in term]
        x = permuted(x, [term.index(letter) for letter in there])  # noqa: PLW2901 - in the order of the result
        for at, letter in enumerate(letters):
            if letter not in term:
                x = inserted(x, at)  # noqa: PLW2901
        spread.append(x)
    summed = range(len(out), len(letters))
    return builder.summed_products(spread[0], spread[1], list(summed))


def _product(
    builder: Builder, x: Rows, constant: Constant, letters: tuple[list[str], ...], sizes: dict[str, int]
) -> Rows:
    shared, kept, summed, new, out = letters

    def size(names: list[str]) -> int:
        return math.prod(sizes[name] for name in names)

    front = [sizes[name] for name in (*shared, *kept)]
    flat = reshaped(x, (*front, size(summed)), x.rows_at)
    matrices = constant.array.reshape((*(sizes[name] for name in shared), size(summed), size(new)))
    made = builder.matmul(flat, constant.of(np.ascontiguousarray(matrices)))
    made = reshaped(made, (*front, *(sizes[name] for name in new)), made.rows_at)
    order = [*shared, *kept, *new]
    return permuted(made, [order.index(letter) for letter in out])


def _spelled(term: str, ndim: int) -> str:
    """Letters that no equation uses for the axes of an ellipsis."""
    if "..." not in term:
        return term
    ahead = "αβγδε"[: ndim - len(term.replace("...", ""))]
    return term.replace("...", ahead)
