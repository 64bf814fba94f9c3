# SPDX-License-Identifier: Apache-2.0
"""The check that every import ends with: the program, in float64, against what it was read from, on random rows of
several scales. A reader that understood something wrong is found out here, not by its user."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.evaluation import evaluate
from fused_mlp.models.weights import Mlp

# Rows of each scale: the middle, where functions bend, and the tails, where they have their limits.
_SCALES = (0.01, 1.0, 4.0, 30.0, 1e4, 1e8)
_ROWS = 5
# Of the scale of an answer (_scale). Both sides compute in float64; this allows constants that were written as float32
# and casts to float32 inside the model. gelu and its tanh form, the closest pair of functions, are 5e-4 apart.
TOLERANCE = 2e-5
# Where a change of this size, relative to the input, changes the answer, its last bits are noise: sin(30 x) far out.
_PRECISION = 1e-13
_FEW = 3  # rows of the second number of rows that the source is run on

Run = Callable[[NDArray[np.float64]], Sequence[NDArray[np.float64]]]


def probes(in_features: int) -> NDArray[np.float64]:
    """(rows, in_features)."""
    generator = np.random.default_rng(0)
    rows = [generator.normal(0, scale, (_ROWS, in_features)) for scale in _SCALES]
    # All of one sign: half of a random row's products cancel out, these drive whole layers into one tail.
    for scale in (3, 1e4, 1e8):
        rows += [np.abs(rows[1]) * scale, -np.abs(rows[1]) * scale]
    rows.append(generator.uniform(0.01, 1, (_ROWS, in_features)))
    # Rounded, so that a source that computes in float32 is given the same numbers.
    return np.concatenate(rows).astype(np.float32).astype(np.float64)


def verify(
    exact: Mlp, run: Run, tolerance: float = TOLERANCE, least: float = 1e-6, precision: float = _PRECISION
) -> None:
    """`exact`: of `Builder.exact`. `run`: the source itself, (rows, in_features) -> its outputs, (rows, n) each.
    `least`: answers below it are as good as zero. `precision`: what the source rounds to."""
    x = probes(exact.spec.in_features)
    outputs = run(x)
    expected = _side_by_side(outputs)
    # Numbers that are small beside others of their output may be what is left when large ones cancel out.
    allowed = tolerance * np.maximum(
        _side_by_side([_scale(each, math.sqrt(precision)) for each in outputs]), least
    )
    _check_alone(run, x, expected, allowed)
    got = evaluate(exact, x)
    # Where the source overflows or is undefined, what stands there instead is its own affair.
    finite = np.isfinite(expected)
    steady = _agree(evaluate(exact, x * (1 + precision)), got, allowed / 10)
    wrong = finite & ~_agree(got, expected, allowed) & steady
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ModelLoadError(
            f"the program that was read does not compute what the model does: {got[row, column]:.6g} where the model "
            f"answers {expected[row, column]:.6g}; please report it, with the model's forward"
        )
    if not finite.any():
        raise ModelLoadError("the model answers no finite numbers on random rows")


def _check_alone(
    run: Run, x: NDArray[np.float64], expected: NDArray[np.float64], allowed: NDArray[np.float64]
) -> None:
    """The answer for a row is its own: not that of the first call, nor of some number of rows."""
    start = _ROWS  # of the rows of scale 1
    if not _agree(_side_by_side(run(x)), expected, allowed).all():
        raise ModelLoadError(
            "it answers the same rows otherwise the second time: it keeps state from call to call, or draws random "
            "numbers; every row has one answer"
        )
    for count in (1, _FEW):
        part = slice(start, start + count)
        try:
            alone = _side_by_side(run(x[part]))
        except (RuntimeError, ValueError, LookupError):  # the program takes what the source does not
            continue
        if alone.shape != expected[part].shape or not _agree(alone, expected[part], allowed[part]).all():
            raise ModelLoadError(
                f"it answers {count} row{'s' if count > 1 else ''} otherwise than among {len(x)}: "
                "the answer for a row must not depend on how many there are"
            )


def _side_by_side(outputs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(each, np.float64) for each in outputs], axis=1)


def _scale(output: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """What an error of each number is relative to: the largest number of its column among the rows of its scale, but
    no more than the largest of its row, and no less than that share of it. output: (rows, n), all of one head."""
    size = np.where(np.isfinite(output), np.abs(output), 0)
    columns = size.reshape(-1, _ROWS, size.shape[1]).max(axis=1).repeat(_ROWS, axis=0)
    largest = size.max(axis=1, keepdims=True)
    scale: NDArray[np.float64] = np.clip(columns, share * largest, largest)
    return scale


def _agree(
    left: NDArray[np.float64], right: NDArray[np.float64], allowed: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Up to what is allowed; or equal, or both undefined."""
    with np.errstate(all="ignore"):
        close = np.abs(left - right) <= allowed
    same: NDArray[np.bool_] = close | (left == right) | (np.isnan(left) & np.isnan(right))
    return same
