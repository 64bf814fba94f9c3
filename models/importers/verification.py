"""The check that every import ends with: the program, in float64, against what it was read from, on random rows of
several scales. A reader that understood something wrong is found out here, not by its user."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.evaluation import evaluate
from fused_mlp.models.weights import Mlp

# Rows of each scale: the middle, where functions bend, and the tails, where they have their limits.
_SCALES = (0.01, 1.0, 4.0, 30.0)
_ROWS = 5
# Of the largest answer of a row. Both sides compute in float64; this allows constants that were written as float32
# and casts to float32 inside the model. gelu and its tanh form, the closest pair of functions, are 5e-4 apart.
TOLERANCE = 2e-5


def probes(in_features: int) -> NDArray[np.float64]:
    """(rows, in_features)."""
    generator = np.random.default_rng(0)
    rows = [generator.normal(0, scale, (_ROWS, in_features)) for scale in _SCALES]
    # All of one sign: half of a random row's products cancel out, these drive whole layers into one tail.
    rows += [np.abs(rows[1]) * 3, -np.abs(rows[1]) * 3, generator.uniform(0.01, 1, (_ROWS, in_features))]
    # Rounded, so that a source that computes in float32 is given the same numbers.
    return np.concatenate(rows).astype(np.float32).astype(np.float64)


def verify(
    exact: Mlp,
    run: Callable[[NDArray[np.float64]], Sequence[NDArray[np.float64]]],
    tolerance: float = TOLERANCE,
    least: float = 1e-6,
) -> None:
    """`exact`: of `Builder.exact`. `run`: the source itself, (rows, in_features) -> its outputs, (rows, n) each.
    `least`: answers below it are as good as zero."""
    x = probes(exact.spec.in_features)
    expected = np.concatenate([np.asarray(each, np.float64) for each in run(x)], axis=1)
    got = evaluate(exact, x)
    with np.errstate(all="ignore"):
        finite = np.isfinite(expected)
        scale = np.where(finite, np.abs(expected), 0).max(axis=1, keepdims=True)
        error = np.abs(got - expected) / np.maximum(scale, least)
    # Where the source overflows or is undefined, what stands there instead is its own affair.
    wrong = finite & ~(error <= tolerance)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ModelLoadError(
            f"the program that was read does not compute what the model does: {got[row, column]:.6g} where the model "
            f"answers {expected[row, column]:.6g}; please report it, with the model's forward"
        )
    if not finite.any():
        raise ModelLoadError("the model answers no finite numbers on random rows")
