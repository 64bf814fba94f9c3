# SPDX-License-Identifier: Apache-2.0
"""A program that was read from an ONNX graph against the graph itself, run by onnx's reference implementation in
float64."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fused_mlp.models.errors import ModelLoadError, first_line
from fused_mlp.models.importers.onnx.graph import GivenInput, Graph
from fused_mlp.models.importers.probes import draw
from fused_mlp.models.importers.verification import verify
from fused_mlp.models.weights.mlp import Mlp

_FLOATS = (1, 10, 16)  # of TensorProto.DataType: float, float16, bfloat16
_DOUBLE = 11
# Numbers that are written as float16 (sqrt(2) = 1.4141) are taken for those that they stand for.
_HALF_TOLERANCE = 2e-3
# The reference computes erf in float32: its gelu of -4 has three digits. Smaller answers count as this large.
_LEAST = 1e-2
# Values of the rows that a graph takes at a time, where it takes no other number: of its inputs, and all of them.
_MAX_FIXED, _MAX_FIXED_VALUES = 1 << 24, 1 << 27


def check(graph: Graph, exact: Mlp, names: Sequence[str], apart: bool, values: int) -> None:
    """ModelLoadError if the two disagree. `names`: those of the graph's outputs that became the program's. `apart`: as
    of the Builder. `values`: of all nodes for one row, which the reference implementation keeps. A graph that the
    reference cannot run is not checked, with a warning."""
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - an extra

    def run(*given: NDArray[Any]) -> list[NDArray[np.float64]]:
        feeds = {each.name: _shaped(each, values) for each, values in zip(graph.inputs, given, strict=True)}
        rows = len(given[0])
        count = graph.rows or rows
        parts = []
        for start in range(0, rows, count):
            part = {name: _filled(values[start : start + count], count) for name, values in feeds.items()}
            with np.errstate(all="ignore"):
                parts.append(reference.run(list(names), part))
        return [
            np.concatenate([np.asarray(part[at], np.float64).reshape(count, -1) for part in parts])[:rows]
            for at in range(len(names))
        ]

    rows = graph.rows
    if rows is not None and (rows * exact.spec.in_features > _MAX_FIXED or rows * values > _MAX_FIXED_VALUES):
        raise ModelLoadError(
            f"it takes {rows} rows at a time, too many to check it: export it for any number"
        )
    try:
        reference = ReferenceEvaluator(_in_double(graph.model, names), new_ops=[_strict_gather_elements()])
        run(*(each[:1] for each in draw(exact.spec, values).given))
    except Exception as error:  # operators of other domains, types that it does not know
        warnings.warn(
            f"not checked against the graph, which onnx cannot run: {first_line(error)[:200]}", stacklevel=2
        )
        return
    half = any(array.dtype.name in ("float16", "bfloat16") for array in graph.constants.values())
    doubles = any(node.op == "Cast" and node.attributes.get("to") == _DOUBLE for node in graph.nodes)
    if half:
        verify(exact, run, _HALF_TOLERANCE, least=1.0, apart=apart, doubles=doubles, values=values)
    else:
        verify(exact, run, least=_LEAST, apart=apart, doubles=doubles, values=values)


def source_name(name: str) -> str:
    """The name of an input, as callers write it."""
    return re.sub(r"[^A-Za-z0-9_./:-]+", "_", name).lstrip("./:-")[:200] or "input"


def _shaped(given: GivenInput, values: NDArray[Any]) -> NDArray[Any]:
    """values: (rows, values of a row), in the shape and type that the graph wants."""
    if given.type in "ib":
        values = values.astype(given.dtype)
    shape = None if given.shape is None else given.shape[1:]
    return (
        values if shape is None or None in shape else values.reshape(len(values), *cast(Sequence[int], shape))
    )


def _filled(values: NDArray[Any], count: int) -> NDArray[Any]:
    """As many rows as the graph takes: the last again, where there are fewer."""
    return (
        values
        if len(values) == count
        else np.concatenate([values, values[-1:].repeat(count - len(values), axis=0)])
    )


def _strict_gather_elements() -> Any:
    """The reference answers for ids beyond the axis, where the operator is undefined."""
    from onnx.reference.op_run import OpRun  # noqa: PLC0415

    class GatherElements(OpRun):  # type: ignore[misc]
        op_domain = ""

        def _run(self, data: Any, indices: Any, axis: int | None = None) -> tuple[Any]:
            return (np.take_along_axis(data, indices, axis or 0),)

    return GatherElements


def _widen_outputs(graph: Any) -> None:
    """Casts the outputs of operators that the reference computes in float32 whatever their inputs: its MatMul refuses
    mixed types."""
    from onnx import helper  # noqa: PLC0415

    nodes = []
    for node in graph.node:
        nodes.append(node)
        attributes = {attribute.name for attribute in node.attribute}
        if node.op_type == "OneHotEncoder" or (
            node.op_type == "LabelEncoder" and "values_floats" in attributes
        ):
            wide, node.output[0] = node.output[0], f"{node.output[0]}::float32"
            nodes.append(helper.make_node("Cast", [node.output[0]], [wide], to=_DOUBLE))
    nodes = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(nodes)


def _spell_for_reference(node: Any, graph: Any) -> None:
    """Operators as the reference implementation knows them: it has no ZipMap, which only gives names to columns, and
    takes the depth of a OneHot as a number."""
    from onnx import numpy_helper  # noqa: PLC0415

    if node.op_type == "ZipMap":
        node.op_type, node.domain = "Identity", ""
        del node.attribute[:]
    elif node.op_type == "OneHot":
        depth = next((each for each in graph.initializer if each.name == node.input[1]), None)
        if depth is not None and len(depth.dims) == 1:
            node.input[1] = f"{depth.name}::number"
            number = numpy_helper.to_array(depth).reshape(())
            graph.initializer.append(numpy_helper.from_array(number, node.input[1]))


def _in_double(model: Any, names: Sequence[str]) -> Any:
    """A copy of the model with all its floats in float64. Only nodes that these outputs need are in it: the others were
    not read, and may run for ever."""
    from onnx import ModelProto, numpy_helper  # noqa: PLC0415

    double = ModelProto()
    double.CopyFrom(model)
    needed, nodes = set(names), []
    for node in reversed(double.graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            nodes.append(node)
    del double.graph.node[:]
    double.graph.node.extend(reversed(nodes))

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
        _spell_for_reference(node, double.graph)
        for attribute in node.attribute:
            if node.op_type == "BatchNormalization" and attribute.name == "momentum":
                attribute.f = 1.0  # the reference trains those of old opsets: then it keeps the statistics
            elif attribute.HasField("t"):
                widen(attribute.t)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i in _FLOATS:
                attribute.i = _DOUBLE
    _widen_outputs(double.graph)
    return double
