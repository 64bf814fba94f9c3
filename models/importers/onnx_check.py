"""A program that was read from an ONNX graph against the graph itself, run by onnx's reference implementation in
float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from fused_mlp.models.activations import Floats
from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.evaluation import evaluate
from fused_mlp.models.importers.onnx_graph import Graph
from fused_mlp.models.weights import Mlp

_ROWS = 12
# Numbers are written into graphs as float32; erf and softplus have several implementations.
_TOLERANCE = 1e-5
_FLOATS = (1, 10, 16)  # of TensorProto.DataType: float, float16, bfloat16
_DOUBLE = 11


def check(graph: Graph, exact: Mlp, shape: tuple[int, ...], names: list[str], rows: int | None) -> None:
    """ModelLoadError if the two disagree. `names`: those of the graph's outputs that became the program's; `rows`: how
    many the graph takes, if that is fixed. Graphs that the reference cannot run are not checked."""
    x = _inputs(rows or _ROWS, shape)
    try:
        expected = _run(graph, x.reshape(len(x), *shape), names)
    except Exception:
        return
    got = evaluate(exact, x)
    for name, output, answer in zip(names, exact.spec.outputs, expected, strict=True):
        columns = got[:, exact.spec.columns(output.name)]
        if answer.size != columns.size:
            raise ModelLoadError(
                f"output {name!r}: the graph answers shape {answer.shape}, we {columns.shape}"
            )
        wanted = answer.reshape(columns.shape)
        with np.errstate(all="ignore"):
            sane = np.isfinite(wanted) & (np.abs(wanted) < 1e30)  # exp of a large row, in any implementation
            error = np.abs(wanted - columns)[sane]
            allowed = _TOLERANCE * max(1.0, float(np.abs(wanted[sane]).max(initial=0.0)))
        if not (error <= allowed).all():
            raise ModelLoadError(
                f"output {name!r}: read as {exact.spec.summary()}, which is off by {float(error.max()):.3g}; "
                "please report this model"
            )


def _inputs(rows: int, shape: tuple[int, ...]) -> Floats:
    """Rows of usual size, small ones and large ones."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((rows, int(np.prod(shape))))
    x[rows // 3 :] *= 0.1
    x[2 * rows // 3 :] *= 100
    return x.astype(np.float32).astype(np.float64)


def _run(graph: Graph, x: Floats, names: list[str]) -> list[Floats]:
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - an extra

    with np.errstate(all="ignore"):
        answers = ReferenceEvaluator(_in_double(graph.model)).run(names, {graph.input_name: x})
    return [_stacked(answer) for answer in answers]


def _stacked(answer: Any) -> Floats:
    if isinstance(answer, list):  # a ZipMap: one dict of probabilities per row
        return np.array([list(row.values()) for row in answer], np.float64)
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
            if attribute.HasField("t"):
                widen(attribute.t)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i in _FLOATS:
                attribute.i = _DOUBLE
    return double
