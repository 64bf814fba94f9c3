# SPDX-License-Identifier: Apache-2.0
"""The same model with its matrices in fewer bits, and what that costs: measured against float64 over given or random
rows, bounded, and layer by layer where the whole costs too much. numpy only."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from collections.abc import Collection
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.program.activations import Floats
from fused_mlp.models.program.evaluation import Int8Products, evaluate
from fused_mlp.models.program.inputs import spread_ids
from fused_mlp.models.program.spec import Step
from fused_mlp.models.program.steps import Bag, Embedding, Weighted
from fused_mlp.models.weights.mlp import Mlp
from fused_mlp.models.weights.precision_error import MOST_ERROR, PrecisionError, percent
from fused_mlp.models.weights.quantization import (
    MAX_INPUTS,
    Precision,
    Reduced,
    ReducedMatrix,
    check_reduced,
    table_to_int8,
    to_bfloat16,
    to_int8,
)
from fused_mlp.models.weights.tables import is_table

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
RANDOM_ROWS = 64
MAX_ROWS = 4096  # of those given: more tell nothing new, and float64 is slow
MAX_ERROR = 0.05  # of the size of a row's outputs
_NONE_FITS = f"{{}}: no matrix of the model can be kept in it (int8 takes up to {MAX_INPUTS} inputs)"


def check_precision(precision: str) -> Precision:
    for known in PRECISIONS:
        if precision == known:
            return known
    raise ModelLoadError(f"precision: expected {', '.join(PRECISIONS)}, got {precision!r}")


def to_precision(mlp: Mlp, precision: Precision, keep: frozenset[str] = frozenset()) -> Mlp:
    """Unmeasured. `keep`: names of steps whose weights stay as they are. So do those that the precision cannot hold:
    too many inputs for int8, numbers too large for bfloat16. A warning if that leaves none."""
    check_precision(precision)
    if precision == mlp.precision:
        return mlp
    plain = _in_float32(mlp)
    if precision == "float32":
        return plain
    if mlp.reduced:
        raise ModelLoadError(f"the model is in {mlp.precision} already: expected its float32 weights")
    reduced = _without(mlp, _reduce_all(mlp, precision), keep)
    if not reduced and not keep and _reducible(mlp):
        warnings.warn(f"{_NONE_FITS.format(precision)}: it stays in float32", stacklevel=2)
    return plain.with_reduced(reduced)


def reduce_precision(
    mlp: Mlp,
    precision: Precision | None,
    rows: NDArray[np.float32] | None = None,
    max_error: float | None = None,
) -> Mlp:
    """`to_precision`, measured over `rows` (rows, in_features), or random ones. Steps that would cost more than
    `max_error` (None: 5 %) stay in float32; refused if none is left. precision=None: as what the model was read from,
    int8 for the matrices that are int8 there, and nothing else."""
    if max_error is not None and not max_error > 0:  # NaN neither
        raise ModelLoadError(f"max_error=...: expected a number above 0, got {max_error}")
    steps = [step.name for step in _reducible(mlp)]
    if precision is None and mlp.quantized and not mlp.reduced:
        precision = "int8"
        steps = [step.name for step in mlp.spec.steps if f"{step.prefix}.weight" in mlp.quantized]
    elif precision is None or check_precision(precision) in (mlp.precision, "float32"):
        if rows is not None or max_error is not None:
            raise ModelLoadError(_nothing_to_measure(mlp, precision))
        return mlp if precision is None else to_precision(mlp, precision)
    elif mlp.reduced:
        return to_precision(mlp, precision)  # which refuses it
    return _Reduction(mlp, precision, steps, rows, MAX_ERROR if max_error is None else max_error).run()


def _nothing_to_measure(mlp: Mlp, precision: Precision | None) -> str:
    text = "calibration=... and max_error=... are about the error of floats that are reduced"
    if mlp.precision != "float32" and precision != "float32":
        return f"{text}: the model is in {mlp.precision} already, import what it was made from"
    return f"{text}: say precision='int8' or precision='bfloat16'"


def _reducible(mlp: Mlp) -> list[Step]:
    """The steps with a matrix, or a table."""
    return [step for step in mlp.spec.steps if isinstance(step, (Weighted, Embedding, Bag))]


def _in_float32(mlp: Mlp) -> Mlp:
    """With biases and norms in it too."""
    if mlp.spec.dtype == "float32" and not mlp.reduced:
        return mlp.with_reduced({})
    return mlp.rounded_to("float32")


def _reduce_all(mlp: Mlp, precision: Precision) -> dict[str, ReducedMatrix]:
    """Every matrix and table that the precision can hold, by name; of a gated step both or none. Tables that are mapped
    stay as they are: reading all of one is what mapping avoids."""
    reduced: dict[str, ReducedMatrix] = {}
    for step in _reducible(mlp):
        found = mlp.tensor(step, "weight")
        if f"{step.prefix}.weight" in reduced or (found is not None and is_table(found)):
            continue
        made: dict[str, ReducedMatrix] = {}
        for half in ("", "gate_"):
            weight = mlp.tensor(step, f"{half}weight")
            if weight is not None:
                table = f"{step.prefix}.{half}weight" in mlp.spec.tables
                to_bytes = table_to_int8 if table else to_int8
                made[f"{step.prefix}.{half}weight"] = (
                    to_bfloat16(weight) if precision == "bfloat16" else to_bytes(weight)
                )
        tables = isinstance(step, (Embedding, Bag))
        if all(check_reduced(matrix, tables) is None for matrix in made.values()):
            reduced |= made
    return reduced


def _without(mlp: Mlp, reduced: Reduced, keep: Collection[str]) -> dict[str, ReducedMatrix]:
    """A step that is kept keeps its weights for all that share them."""
    kept = {
        f"{step.prefix}.{half}weight"
        for step in mlp.spec.steps
        for half in ("", "gate_")
        if step.name in keep
    }
    return {name: matrix for name, matrix in reduced.items() if name not in kept}


def measure(
    mlp: Mlp, exact: Floats, x: NDArray[np.float32], calibrated: bool, kept: tuple[str, ...] = ()
) -> PrecisionError | None:
    """exact: (rows, out_features), what float64 makes of x with the weights that `mlp` was made from. None: an output
    is not finite."""
    y = evaluate(mlp, x, Int8Products()).astype(np.float64)
    if not (np.isfinite(y).all() and np.isfinite(exact).all()):
        return None
    largest, mean, angles, same = 0.0, 0.0, [], []
    for output in mlp.spec.outputs:
        columns = mlp.spec.columns(output.name)
        got, want = y[:, columns], exact[:, columns]
        # Each row by its own size: by that of the largest, one loud row would hide the others. Outputs near zero are
        # measured by a usual row.
        sizes = np.abs(want).max(axis=1, keepdims=True)
        sizes = np.maximum(sizes, np.median(sizes[sizes > 0]) if sizes.any() else 1.0)
        differences = np.minimum(np.abs(got - want) / sizes, MOST_ERROR)
        largest = max(largest, float(differences.max()))
        mean = max(mean, float(differences.mean()))
        if got.shape[1] > 1:
            zeros = ~(got.any(axis=1) | want.any(axis=1))  # on both sides: the same direction
            angles.append(float(np.where(zeros, 1.0, (_unit(got) * _unit(want)).sum(axis=1)).min()))
            same.append(float((got.argmax(axis=1) == want.argmax(axis=1)).mean()))
    return PrecisionError(
        rows=len(x),
        calibrated=calibrated,
        largest=largest,
        mean=mean,
        cosine=float(np.clip(min(angles), -1, 1)) if angles else None,
        top1=min(same) if same else None,
        kept=kept,
    )


def _unit(rows: Floats) -> Floats:
    """Each row divided by its length; zeros stay zeros. By its largest number first, whose square might overflow."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scaled = rows / np.where(largest > 0, largest, 1.0)
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    units: Floats = scaled / np.where(lengths > 0, lengths, 1.0)
    return units


class _Reduction:
    """Reduces some steps of a model; its other products stay as they are."""

    def __init__(
        self,
        mlp: Mlp,
        precision: Precision,
        steps: list[str],
        rows: NDArray[np.float32] | None,
        max_error: float,
    ) -> None:
        self.plain, self.precision, self.max_error = _in_float32(mlp), precision, max_error
        self.x, self.calibrated = _check_rows(mlp, rows), rows is not None
        self.exact = evaluate(mlp, self.x.astype(np.float64))
        others = [step.name for step in _reducible(mlp) if step.name not in steps]
        self.reduced = _without(mlp, _reduce_all(mlp, precision), others)
        # Steps that share their weights are reduced together: one stands for all.
        self.steps = list(
            {
                step.prefix: step.name
                for step in reversed(_reducible(mlp))
                if f"{step.prefix}.weight" in self.reduced
            }.values()
        )[::-1]

    def run(self) -> Mlp:
        if not self.steps:
            raise ModelLoadError(_NONE_FITS.format(self.precision))
        found = self._measured(())
        if self._is_within(found):
            return found
        # The steps that cost most by themselves stay in float32: as many as it takes. The search has few rows.
        alone = {name: self._cost([other for other in self.steps if other != name]) for name in self.steps}
        costly = sorted(self.steps, key=lambda name: -alone[name])
        first = 1 + bisect_left(
            range(1, len(costly)), True, key=lambda count: self._cost(costly[:count]) <= self.max_error
        )
        for count in range(first, len(costly)):
            found = self._measured(costly[:count])
            if self._is_within(found):
                return found
        if math.isinf(alone[costly[-1]]):
            raise ModelLoadError(
                f"{self.precision}: the outputs are not finite for some of the {len(self.x)} rows"
            )
        worst = costly[0]
        raise ModelLoadError(
            f"{self.precision}: expected an error of at most {percent(self.max_error)} of the outputs; step {worst!r} "
            f"alone has {percent(alone[worst])}, and {costly[-1]!r}, the best, {percent(alone[costly[-1]])}: allow "
            "more when it is imported (--max-error), or keep float32 (--precision float32)"
        )

    def _is_within(self, found: Mlp) -> bool:
        return found.error is not None and found.error.largest <= self.max_error

    def _measured(self, costly: Collection[str], every: int = 1) -> Mlp:
        """Over one of `every` rows."""
        found = self.plain.with_reduced(_without(self.plain, self.reduced, costly))
        kept = tuple(step.name for step in _reducible(found) if f"{step.prefix}.weight" not in found.reduced)
        found.error = measure(found, self.exact[::every], self.x[::every], self.calibrated, kept)
        return found

    def _cost(self, costly: Collection[str]) -> float:
        error = self._measured(costly, every=-(-len(self.x) // RANDOM_ROWS)).error
        return math.inf if error is None else error.largest


def _check_rows(mlp: Mlp, rows: NDArray[np.float32] | None) -> NDArray[np.float32]:
    width = mlp.spec.in_features
    if rows is None:
        drawn = np.random.default_rng(0).standard_normal((RANDOM_ROWS, width), np.float32)
        spread_ids(mlp.spec.record, drawn)
        return drawn
    x = np.asarray(rows)
    if x.ndim != 2 or x.shape[1] != width or len(x) == 0 or x.dtype.kind not in "fiu":
        raise ModelLoadError(
            f"calibration rows: expected numbers of shape (rows, {width}), got {x.dtype} {x.shape}"
        )
    x = np.ascontiguousarray(x[:: -(-len(x) // MAX_ROWS)], np.float32)
    ids = np.zeros(width, np.bool_)  # whose words are no floats
    for part in mlp.spec.record:
        ids[part.start : part.stop] = part.field.kind == "id"
    if not np.isfinite(x[:, ~ids]).all():
        raise ModelLoadError("calibration rows: expected finite numbers, got NaN or infinity")
    return x
