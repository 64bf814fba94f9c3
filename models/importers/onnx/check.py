# SPDX-License-Identifier: Apache-2.0
"""A program that was read from an ONNX graph against the graph itself, run by onnx's reference implementation in
float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fused_mlp.models.importers.onnx.graph import Graph
from fused_mlp.models.importers.verification import verify
from fused_mlp.models.weights import Mlp

_FLOATS = (1, 10, 16)  # of TensorProto.DataType: float, float16, bfloat16
_DOUBLE = 11
# Numbers that are written as float16 (sqrt(2) = 1.4141) are taken for those that they stand for.
_HALF_TOLERANCE = 2e-3
# The reference computes erf in float32: its gelu of -4 has three digits. Smaller answers count as this large.
_LEAST = 1e-2


def check(graph: Graph, exact: Mlp, shape: Sequence[int], names: Sequence[str], rows: int | None) -> None:
    """ModelLoadError if the two disagree. `names`: those of the graph's outputs that became the program's; `rows`: how
    many the graph takes at a time, if that is fixed. Graphs that the reference cannot run are not checked."""
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - an extra

    def run(x: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        count = rows or len(x)
        padded = np.concatenate([x, np.zeros((-len(x) % count, x.shape[1]))]).reshape(-1, count, *shape)
        with np.errstate(all="ignore"):
            parts = [reference.run(list(names), {graph.input_name: part}) for part in padded]
        return [
            np.concatenate([_stacked(part[at]).reshape(count, -1) for part in parts])[: len(x)]
            for at in range(len(names))
        ]

    try:
        reference = ReferenceEvaluator(_in_double(graph.model))
        run(np.zeros((1, exact.spec.in_features)))
    except Exception:  # operators of other domains, types that it does not know
        return
    half = any(array.dtype.name in ("float16", "bfloat16") for array in graph.constants.values())
    if half:
        verify(exact, run, _HALF_TOLERANCE, least=1.0)
    else:
        verify(exact, run, least=_LEAST)


def _stacked(answer: Any) -> NDArray[np.float64]:
    if isinstance(answer, list):  # of a ZipMap: the probabilities of each row by label
        answer = [list(row.values()) for row in answer]
    return np.asarray(answer, np.float64)


def _in_double(model: Any) -> Any:
    """A copy of the model with all its floats in float64."""
    from onnx import ModelProto, numpy_helper  # noqa: PLC0415

    double = ModelProto()
    double.CopyFrom(model)

    def widen(tensor: Any) -> None:
        if tensor.data_type in _FLOATS:
            array = np.asarray(numpy_helper.to_array(tensor)).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    for tensor in double.graph.initializer:
        widen(tensor)
    for value in (*double.graph.input, *double.graph.output):
        if value.type.tensor_type.elem_type in _FLOATS:
            value.type.tensor_type.elem_type = _DOUBLE
    for node in double.graph.node:
        for attribute in node.attribute:
            if node.op_type == "BatchNormalization" and attribute.name == "momentum":
                attribute.f = 1.0  # the reference trains those of old opsets: then it keeps the statistics
            elif attribute.HasField("t"):
                widen(attribute.t)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i in _FLOATS:
                attribute.i = _DOUBLE
    return double
