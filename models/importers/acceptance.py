# SPDX-License-Identifier: Apache-2.0
"""The check of an import against outputs that its user has: rows, and what the model answered to them where it was
trained."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.program.evaluation import Arithmetic, Int8Products, evaluate
from fused_mlp.models.weights.mlp import Mlp
from fused_mlp.models.weights.precision import MAX_ERROR

# Shares of a row's largest output. Rounding in that dtype causes about a tenth; gelu and its tanh form, the closest
# pair of functions, are 5e-4 apart.
_TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


def check_outputs(mlp: Mlp, x: NDArray[Any], y: NDArray[Any], max_error: float | None = None) -> None:
    """x: (rows, in_features), y: (rows, outputs), those of several heads side by side; further dimensions of a row are
    taken as one. Weights in fewer bits may differ by `max_error`. Raises ModelLoadError."""
    rows = len(x) if x.ndim > 1 else 1
    spec = mlp.spec
    for array, width in ((x, spec.in_features), (y, spec.out_features)):
        if array.size != rows * width:
            what = "rows" if array is x else "their outputs"
            raise ModelLoadError(f"check: expected {what} as ({rows}, {width}), got {array.shape}")
    given, expected = (np.asarray(array, np.float64).reshape(rows, -1) for array in (x, y))
    arithmetic: Arithmetic = Int8Products() if mlp.precision == "int8" else Arithmetic()
    values = given.astype(np.float32) if mlp.precision == "int8" else given
    got = evaluate(mlp, values, arithmetic).astype(np.float64)
    tolerance = (max_error or MAX_ERROR) if mlp.reduced else _TOLERANCES[spec.dtype]
    finite = np.where(np.isfinite(expected), np.abs(expected), 0)
    scale = np.maximum(finite.max(axis=1, keepdims=True), 1e-6 * finite.max(initial=1e-30))
    with np.errstate(invalid="ignore"):
        close = np.abs(got - expected) <= tolerance * scale
    wrong = ~(close | (got == expected) | (np.isnan(got) & np.isnan(expected)))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ModelLoadError(
            f"check: {int(wrong.any(axis=1).sum())} of {rows} rows are not reproduced: row {row}, output {column} is "
            f"{got[row, column]:.6g}, expected {expected[row, column]:.6g} within {tolerance:g} of the row's largest; "
            "nothing was imported"
        )
