"""The same model with its matrices in fewer bits. Owns which matrices; quantization.py says how they are rounded."""

from __future__ import annotations

from typing import get_args

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.quantization import MOST_INPUTS, Precision, ReducedMatrix, to_bfloat16, to_int8
from fused_mlp.models.weights import Mlp


def to_precision(mlp: Mlp, precision: Precision, keep: frozenset[str] = frozenset()) -> Mlp:
    """`keep`: names of steps whose weights stay as they are. A matrix with too many inputs for int8 stays too."""
    if precision not in get_args(Precision):
        raise ModelLoadError(f"precision: expected 'float32', 'bfloat16' or 'int8', got {precision!r}")
    if precision == mlp.precision:
        return mlp
    if mlp.reduced:
        raise ModelLoadError(f"the model is in {mlp.precision} already: start from its float32 weights")
    reduced: dict[str, ReducedMatrix] = {}
    for step in mlp.spec.steps:
        for half in ("", "gate_"):
            name = f"{step.prefix}.{half}weight"
            weight = mlp.tensor(step, f"{half}weight")
            if step.op not in ("linear", "gated") or weight is None or step.name in keep:
                continue
            if precision == "bfloat16":
                reduced[name] = to_bfloat16(weight)
            elif weight.shape[1] <= MOST_INPUTS:
                reduced[name] = to_int8(weight)
    # Widened weights need all of float32.
    spec = mlp.spec.model_copy(update={"dtype": "float32"})
    return Mlp(spec, mlp.tensors(), example=mlp.example, source=mlp.source, reduced=reduced)
