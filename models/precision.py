"""The same model with its matrices in fewer bits, and what that costs: measured against float64 over given or random
rows, bounded, and layer by layer where the whole costs too much. numpy only."""

from __future__ import annotations

from typing import get_args

import numpy as np
from numpy.typing import NDArray

from fused_mlp.models.activations import Floats
from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.evaluation import Int8Products, evaluate
from fused_mlp.models.precision_error import PrecisionError
from fused_mlp.models.quantization import (
    MOST_INPUTS,
    Precision,
    ReducedMatrix,
    to_bfloat16,
    to_int8,
)
from fused_mlp.models.weights import Mlp

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
RANDOM_ROWS = 64
MOST_ROWS = 4096  # of those given: more tell nothing new, and float64 is slow
MAX_ERROR = 0.05  # of the largest output


def check_precision(precision: str) -> Precision:
    for known in PRECISIONS:
        if precision == known:
            return known
    raise ModelLoadError(f"precision: expected {', '.join(PRECISIONS)}, got {precision!r}")


def to_precision(mlp: Mlp, precision: Precision, keep: frozenset[str] = frozenset()) -> Mlp:
    """Unmeasured. `keep`: names of steps whose weights stay as they are. A matrix with too many inputs for int8 stays
    too."""
    check_precision(precision)
    if precision == mlp.precision:
        return mlp
    if mlp.reduced:
        raise ModelLoadError(f"the model is in {mlp.precision} already: expected its float32 weights")
    spec = mlp.spec.model_copy(update={"dtype": "float32"})  # biases and norms stay in it
    if precision == "float32":
        return Mlp(spec, mlp.tensors(), example=mlp.example, source=mlp.source)
    reduced: dict[str, ReducedMatrix] = {}
    for step in mlp.spec.steps:
        if step.op not in ("linear", "gated") or step.name in keep:
            continue
        for half in ("", "gate_"):
            weight = mlp.tensor(step, f"{half}weight")
            if weight is not None and (precision == "bfloat16" or weight.shape[1] <= MOST_INPUTS):
                reduce = to_bfloat16 if precision == "bfloat16" else to_int8
                reduced[f"{step.prefix}.{half}weight"] = reduce(weight)
    # Kept steps that share their weights with others keep them for all.
    for step in mlp.spec.steps:
        if step.name in keep:
            for half in ("", "gate_"):
                reduced.pop(f"{step.prefix}.{half}weight", None)
    rest = {name: tensor for name, tensor in mlp.tensors().items() if name not in reduced}
    return Mlp(spec, rest, example=mlp.example, source=mlp.source, reduced=reduced)


def reduce_precision(
    mlp: Mlp,
    precision: Precision | None,
    rows: NDArray[np.float32] | None = None,
    max_error: float = MAX_ERROR,
) -> Mlp:
    """`to_precision`, measured over `rows` (rows, in_features), or random ones. Steps that would cost more than
    `max_error` stay in float32; refused if none is left. None: as what the model was read from, int8 for the matrices
    that are int8 there, and nothing else."""
    if not max_error > 0:  # NaN neither
        raise ModelLoadError(f"max_error: expected a number above 0, got {max_error}")
    if precision is None:
        steps = [step.name for step in mlp.spec.steps if f"{step.prefix}.weight" in mlp.quantized]
        if not steps:
            return mlp
        return _Reduction(mlp, "int8", steps, rows, max_error).run()
    if check_precision(precision) in (mlp.precision, "float32"):
        return to_precision(mlp, precision)
    steps = _products(mlp)
    if not steps:
        raise ModelLoadError(f"{precision}: the model has no matrix to reduce")
    return _Reduction(mlp, precision, steps, rows, max_error).run()


def _products(mlp: Mlp) -> list[str]:
    return [step.name for step in mlp.spec.steps if step.op in ("linear", "gated")]


def measure(
    mlp: Mlp, exact: Floats, x: NDArray[np.float32], calibrated: bool, kept: tuple[str, ...] = ()
) -> PrecisionError:
    """exact: (rows, out_features), what float64 makes of x with the weights that `mlp` was made from."""
    y = evaluate(mlp, x, Int8Products()).astype(np.float64)
    with np.errstate(all="ignore"):
        largest, mean, cosine, same = 0.0, 0.0, 1.0, []
        for output in mlp.spec.outputs:
            columns = mlp.spec.columns(output.name)
            got, want = y[:, columns], exact[:, columns]
            size = np.abs(want).max() or 1.0
            largest = max(largest, float(np.abs(got - want).max() / size))
            mean = max(mean, float(np.abs(got - want).mean() / size))
            lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(want, axis=1)
            angles = np.where(lengths > 0, (got * want).sum(axis=1) / lengths, 1.0)
            if got.shape[1] > 1:
                cosine = min(cosine, float(angles.min()))
                same.append(float((got.argmax(axis=1) == want.argmax(axis=1)).mean()))
    if not np.isfinite([largest, mean, cosine]).all():
        raise ModelLoadError(f"{mlp.precision}: the outputs are not finite for some of the {len(x)} rows")
    top1 = min(same) if same else None
    return PrecisionError(
        rows=len(x),
        calibrated=calibrated,
        largest=largest,
        mean=mean,
        cosine=min(cosine, 1.0),
        top1=top1,
        kept=kept,
    )


class _Reduction:
    """Of some steps of a model; its other products stay as they are."""

    def __init__(
        self,
        mlp: Mlp,
        precision: Precision,
        steps: list[str],
        rows: NDArray[np.float32] | None,
        max_error: float,
    ) -> None:
        self.mlp, self.precision, self.steps, self.max_error = mlp, precision, steps, max_error
        self.x, self.calibrated = _check_rows(mlp, rows), rows is not None
        self.exact = evaluate(mlp, self.x.astype(np.float64))

    def run(self) -> Mlp:
        found = self._measured(())
        if found.error is not None and found.error.largest <= self.max_error:
            return found
        # The steps that cost most by themselves stay in float32, one after the other, until the rest is cheap enough.
        alone = {
            name: self._cost(tuple(other for other in self.steps if other != name)) for name in self.steps
        }
        costly = sorted(self.steps, key=lambda name: -alone[name])
        for count in range(1, len(costly)):
            found = self._measured(tuple(costly[:count]))
            if found.error is not None and found.error.largest <= self.max_error:
                return found
        worst = costly[0]
        raise ModelLoadError(
            f"{self.precision}: expected an error of at most {self.max_error:.2%} of the largest output; step "
            f"{worst!r} alone has {alone[worst]:.2%}, and {costly[-1]!r}, the best, {alone[costly[-1]]:.2%}: allow "
            "more when it is imported (--max-error), or keep float32 (--precision float32)"
        )

    def _measured(self, costly: tuple[str, ...]) -> Mlp:
        reduced = set(self.steps).difference(costly)
        kept = tuple(name for name in _products(self.mlp) if name not in reduced)
        found = to_precision(self.mlp, self.precision, frozenset(kept))
        found.error = measure(found, self.exact, self.x, self.calibrated, kept)
        return found

    def _cost(self, kept: tuple[str, ...]) -> float:
        error = self._measured(kept).error
        assert error is not None
        return error.largest


def _check_rows(mlp: Mlp, rows: NDArray[np.float32] | None) -> NDArray[np.float32]:
    width = mlp.spec.in_features
    if rows is None:
        return np.random.default_rng(0).standard_normal((RANDOM_ROWS, width), np.float32)
    x = np.asarray(rows)
    if x.ndim != 2 or x.shape[1] != width or len(x) == 0 or x.dtype.kind not in "fiu":
        raise ModelLoadError(
            f"calibration rows: expected numbers of shape (rows, {width}), got {x.dtype} {x.shape}"
        )
    x = np.ascontiguousarray(x[:: -(-len(x) // MOST_ROWS)], np.float32)
    if not np.isfinite(x).all():
        raise ModelLoadError("calibration rows: expected finite numbers, got NaN or infinity")
    return x
