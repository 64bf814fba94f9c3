# SPDX-License-Identifier: Apache-2.0
"""A program computed in numpy, step by step: what a model means. The reference of every check; nothing is fast here.
Knows nothing of kernels. Rounding, and the order of sums, are the caller's (`Arithmetic`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fused_mlp.models.program.activations import Floats
from fused_mlp.models.program.arithmetic import Arithmetic, Ids, Int8Products, Tensors
from fused_mlp.models.program.spec import INPUT, Step
from fused_mlp.models.weights.dtypes import Array, widen
from fused_mlp.models.weights.mlp import Mlp

__all__ = ["Arithmetic", "Int8Products", "evaluate", "evaluate_values", "tensors_of"]


def evaluate(mlp: Mlp, x: Floats, arithmetic: Arithmetic | None = None) -> Floats:
    """x: (rows, in_features), float32 or float64; computes in that dtype. All outputs side by side, as kernels write
    them: (rows, out_features)."""
    values = evaluate_values(mlp, x, arithmetic)
    return np.concatenate([values[output.value] for output in mlp.spec.outputs], axis=1)


def evaluate_values(mlp: Mlp, x: Floats, arithmetic: Arithmetic | None = None) -> dict[str, Floats]:
    """Every value by its name, the input's included."""
    arithmetic = arithmetic or Arithmetic()
    values = {INPUT: x}
    kinds = mlp.spec.kinds_by_name
    with np.errstate(all="ignore"):
        for step in mlp.spec.steps:
            sources = [values[source] for source in step.sources]
            made = step.evaluate(sources, tensors_of(mlp, step, x.dtype), arithmetic)
            values[step.name] = arithmetic.stored(made) if kinds[step.name] == "float" else made
    return values


def tensors_of(mlp: Mlp, step: Step, dtype: np.dtype[Any]) -> Tensors:
    """A step's tensors, in the dtype that is computed in."""

    def get(name: str) -> Floats | None:
        found = mlp.tensor(step, name)
        return None if found is None else _as(found, dtype)

    def table(name: str, ids: Ids) -> Floats:
        return _as(mlp.table_rows(step, name, ids), dtype)

    return Tensors(get, table, lambda name: mlp.reduced.get(f"{step.prefix}.{name}"))


def _as(array: Array, dtype: np.dtype[Any]) -> Floats:
    if array.dtype == np.float64:  # of an importer's check, before anything is rounded
        return array.astype(dtype, copy=False)
    return widen(array).astype(dtype, copy=False)
