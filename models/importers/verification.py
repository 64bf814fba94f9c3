# SPDX-License-Identifier: Apache-2.0
"""The check that every import ends with: the program, in float64, against what it was read from, on random rows of
several scales. A reader that understood something wrong is found out here, not by its user."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.probes import (
    ROWS,
    Probes,
    beyond,
    draw,
    with_close_numbers,
    with_special_floats,
)
from fused_mlp.models.program.evaluation import evaluate
from fused_mlp.models.program.spec import MlpSpec
from fused_mlp.models.weights.mlp import Mlp

# In units of the scale of an answer (_scale). Both sides compute in float64; this allows constants that were written as
# float32 and casts to float32 inside the model. gelu and its tanh form, the closest pair of functions, are 5e-4 apart.
TOLERANCE = 2e-5
# Where a change of this size, relative to the input, changes the answer, its last bits are noise: sin(30 x) far out.
_PRECISION = 1e-13
_FEW = 3  # rows of the second number of rows that the source is run on

_LOST = 5  # times the tolerance: float32 rounds what is subtracted
_LARGEST = 1e30  # finite answers that stand for an infinity, as those of nan_to_num, are farther out


# The source itself: an array for each input, (rows, values of a row) -> its outputs, (rows, n) each.
_T = TypeVar("_T")
Run = Callable[..., Sequence[NDArray[np.float64]]]


class SpreadError(ModelLoadError):
    """NaN or an infinity reaches answers that it does not reach in the model. `is_wrong`: a finite number is wrong
    because of NaN. The rest are infinities, and conditions that spell a function, such as x > 0 for relu, which keeps
    NaN."""

    is_wrong = False


def keeping_apart(build: Callable[[bool], _T]) -> _T:
    """build(apart): a program as the Builder makes it. The one with fewer steps, if it passes the check."""
    try:
        return build(False)
    except SpreadError:
        return build(True)


def verify(
    exact: Mlp,
    run: Run,
    tolerance: float = TOLERANCE,
    least: float = 1e-6,
    precision: float = _PRECISION,
    *,
    apart: bool = False,
    doubles: bool = False,
    values: int = 0,
) -> None:
    """`exact`: of `Builder.exact`. `run`: the source itself. `least`: answers below it are as good as zero.
    `precision`: what the source rounds to. `apart`: as of the Builder. `doubles`: whether the source computes in
    float64 where its weights are float32. `values`: as of `draw`."""
    probes = draw(exact.spec, values)
    outputs = run(*probes.given)
    expected = _side_by_side(outputs)
    # Numbers that are small beside others of their output may be what is left when large ones cancel out.
    allowed = tolerance * np.maximum(
        _side_by_side([_scale(each, math.sqrt(precision)) for each in outputs]), least
    )
    _check_alone(run, probes, expected, allowed)
    _check_beyond(exact.spec, run, probes)
    # Where the source overflows or is undefined, what stands there instead is its own affair.
    finite = np.isfinite(expected)
    got, wrong = _compared(exact, probes, expected, allowed, precision)
    if (wrong & finite).any():
        raise ModelLoadError(_first_wrong(wrong & finite, got, expected))
    if not finite.any():
        raise ModelLoadError("the model answers no finite numbers on random rows")
    if doubles:
        _check_close(exact, run, probes, tolerance, least)
    try:
        _check_special(exact, run, with_special_floats(exact.spec, probes), tolerance, least)
    except SpreadError as error:
        if not apart or error.is_wrong:
            raise


def _compared(
    exact: Mlp, probes: Probes, expected: NDArray[np.float64], allowed: NDArray[np.float64], precision: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The answers of the program, and which of them are wrong and do not depend on the last bits of the rows."""
    got = evaluate(exact, probes.record)
    steady = _agree(evaluate(exact, probes.moved(precision)), got, allowed / 10)
    return got, ~_agree(got, expected, allowed) & steady


def _check_close(exact: Mlp, run: Run, probes: Probes, tolerance: float, least: float) -> None:
    """Whole numbers that the model subtracts in float64 are no float32 before."""
    if (close := with_close_numbers(exact.spec, probes)) is None:
        return
    if (expected := _unless_refused(run, close)) is None:
        return
    size = np.where(np.isfinite(expected), np.abs(expected), 0).max(axis=1, keepdims=True)
    if not _agree(evaluate(exact, close.record), expected, _LOST * tolerance * np.maximum(size, least)).all():
        raise ModelLoadError(
            "it subtracts large whole numbers in float64, of which float32 keeps seven digits: subtract a constant as "
            "a whole number, (time - 1_700_000_000).float(), or send the difference of two inputs"
        )


def _check_special(exact: Mlp, run: Run, probes: Probes, tolerance: float, least: float) -> None:
    """Where the model answers NaN and infinities with finite numbers, the program answers the same."""
    if (expected := _unless_refused(run, probes)) is None:
        return
    usual = np.abs(expected) < _LARGEST  # False for NaN
    largest = np.where(usual, np.abs(expected), 0).max(axis=1, keepdims=True)
    got, wrong = _compared(exact, probes, expected, tolerance * np.maximum(largest, least), _PRECISION)
    if (wrong & usual).any():
        error = SpreadError(
            _first_wrong(wrong & usual, got, expected, " with rows that hold NaN or infinity")
        )
        with_infinity = np.isinf(probes.record).any(axis=1, keepdims=True)
        error.is_wrong = bool((wrong & usual & np.isfinite(got) & ~with_infinity).any())
        raise error


def _unless_refused(run: Run, probes: Probes) -> NDArray[np.float64] | None:
    try:
        with np.errstate(all="ignore"):
            return _side_by_side(run(*probes.given))
    except (ArithmeticError, LookupError, RuntimeError, ValueError):
        return None


def _first_wrong(
    wrong: NDArray[np.bool_], got: NDArray[np.float64], expected: NDArray[np.float64], rows: str = ""
) -> str:
    row, column = np.argwhere(wrong)[0]
    return (
        f"the program that was read does not compute what the model does{rows}: {got[row, column]:.6g} where the model "
        f"answers {expected[row, column]:.6g}; please report it, with the model's forward"
    )


def _check_alone(
    run: Run, probes: Probes, expected: NDArray[np.float64], allowed: NDArray[np.float64]
) -> None:
    """The answer for a row is its own: not that of the first call, nor of some number of rows."""
    start = ROWS  # of the rows of scale 1
    if not _agree(_side_by_side(run(*probes.given)), expected, allowed).all():
        raise ModelLoadError(
            "outputs for the same rows differ between calls: it keeps state, or draws random numbers; every row has "
            "one answer"
        )
    for count in (1, _FEW):
        part = slice(start, start + count)
        try:
            alone = _side_by_side(run(*(each[part] for each in probes.given)))
        except (RuntimeError, ValueError, LookupError):  # the program takes what the source does not
            continue
        if alone.shape != expected[part].shape or not _agree(alone, expected[part], allowed[part]).all():
            raise ModelLoadError(
                f"a row's output changes with the batch size ({count} vs {len(expected)}): "
                "the answer for a row must not depend on how many there are"
            )


def _check_beyond(spec: MlpSpec, run: Run, probes: Probes) -> None:
    """An id that the program refuses is an error in the source as well: else it has a rule that was not read."""
    for each, value, row in beyond(spec, probes):
        try:
            outputs = run(*row)
        except (RuntimeError, ValueError, LookupError):
            continue
        if all(np.isfinite(output).all() for output in outputs):
            raise ModelLoadError(
                f"it answers id {value} of input {each.name!r}, which is beyond its table: what it does with such ids "
                "was not read; please report it, with the model's forward"
            )


def _side_by_side(outputs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(each, np.float64) for each in outputs], axis=1)


def _scale(output: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """The scale for the error of each number: the largest number of its column among the rows of its scale, but
    no more than the largest of its row, and no less than that share of it. output: (rows, n), all of one head."""
    size = np.where(np.isfinite(output), np.abs(output), 0)
    columns = size.reshape(-1, ROWS, size.shape[1]).max(axis=1).repeat(ROWS, axis=0)
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
