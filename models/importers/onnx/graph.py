# SPDX-License-Identifier: Apache-2.0
"""An ONNX file as plain Python and numpy: nodes, constants, inputs, outputs. The `onnx` package, an extra, is
imported when the first file is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.onnx.bounds import check_nodes, load_external_data
from fused_mlp.models.importers.onnx.quantized import in_floats
from fused_mlp.models.program.inputs import MAX_INPUTS, InputDtype
from fused_mlp.models.weights.dtypes import Array, named_dtype


@dataclass(frozen=True)
class Node:
    index: int
    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    domain: str = ""

    @property
    def where(self) -> str:
        """How error texts name it."""
        name = self.name[:200]
        return f"node {self.index} {name!r}: {self.op}" if name else f"node {self.index}: {self.op}"

    @property
    def path(self) -> str:
        """The module that it comes from, where its exporter says: `/blocks.0/fc1/Gemm` is blocks.0.fc1."""
        path: list[str] = []
        for part in self.name.strip("/").split("/")[:-1]:
            if path and part.startswith(f"{path[-1]}."):  # /net/net.0/Gemm
                path.pop()
            path.append(part)
        return ".".join(path) or self.name or self.op.lower()


@dataclass(frozen=True)
class GivenInput:
    """`shape` has None for sizes left open and is None itself when the file declares no shape."""

    name: str
    dtype: InputDtype
    shape: tuple[int | None, ...] | None

    @property
    def type(self) -> str:
        """f, i, b or s, as numpy has it."""
        return {"bfloat16": "f", "bool": "b", "string": "s"}.get(self.dtype) or self.dtype.lstrip("u")[0]


@dataclass(frozen=True)
class Output:
    """`is_float`: a tensor of floats; class labels, which classifiers answer too, are whole numbers or texts."""

    name: str
    is_float: bool


@dataclass(frozen=True)
class Graph:
    """`quantized` names the constants that were int8 weights, for rows that were quantised too. `model` is the
    ModelProto, in floats."""

    nodes: tuple[Node, ...]
    constants: dict[str, Array]
    inputs: tuple[GivenInput, ...]
    outputs: tuple[Output, ...]
    quantized: frozenset[str]
    model: Any

    @property
    def rows(self) -> int | None:
        """How many the graph takes at a time, if that is fixed."""
        return next((each.shape[0] for each in self.inputs if each.shape and each.shape[0] is not None), None)


def read_graph(path: Path) -> Graph:
    """The main graph, with local functions inlined and external data read from beside the file."""
    try:
        import onnx  # noqa: PLC0415 - an extra
        import onnx.inliner  # noqa: PLC0415
    except ImportError as error:
        raise ModelLoadError(
            "reading ONNX files needs the onnx package: pip install 'fused-mlp[onnx]'"
        ) from error
    try:
        model = onnx.load(path, load_external_data=False)
        check_nodes(model)
        load_external_data(model, path.parent)
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
            del model.functions[:]  # of other opsets: onnx would run them, and they were not read
    except ModelLoadError:
        raise
    except Exception as error:  # whatever a parser may say about a damaged file
        text = " ".join(str(error).split())[:200]
        raise ModelLoadError(f"not a readable ONNX file: {text or type(error).__name__}") from error
    quantized = in_floats(model)
    graph = model.graph
    constants = {tensor.name: _to_array(tensor) for tensor in graph.initializer}
    _check_names(graph)
    inputs = [value for value in graph.input if value.name not in constants]
    if not 0 < len(inputs) <= MAX_INPUTS or not graph.output:
        raise ModelLoadError(
            f"expected 1 to {MAX_INPUTS} inputs and at least one output, got {len(inputs)} and {len(graph.output)}"
        )
    if graph.sparse_initializer:
        raise ModelLoadError("sparse initializers are not read: store the weights dense")
    nodes = tuple(
        Node(
            index,
            node.op_type,
            node.name,
            tuple(node.input),
            tuple(node.output),
            {attribute.name: _attribute(attribute) for attribute in node.attribute},
            "" if node.domain == "ai.onnx" else node.domain,
        )
        for index, node in enumerate(graph.node)
    )
    outputs = tuple(Output(value.name, _is_float(value)) for value in graph.output)
    given = tuple(GivenInput(value.name, _dtype(value), _shape(value)) for value in inputs)
    return Graph(nodes, constants, given, outputs, quantized, model)


def _check_names(graph: Any) -> None:
    """A value that is made again would be another one for the check, which runs all nodes, than for the reader."""
    made = {value.name for value in (*graph.input, *graph.initializer)}
    for node in graph.node:
        for name in filter(None, node.output):
            if name in made:
                raise ModelLoadError(f"value {name[:200]!r} is made twice")
            made.add(name)


def _attribute(attribute: Any) -> Any:
    import onnx  # noqa: PLC0415

    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return _to_array(value)
    if isinstance(value, (list, tuple)):
        return [each.decode(errors="replace") if isinstance(each, bytes) else each for each in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _to_array(tensor: Any) -> Array:
    import onnx  # noqa: PLC0415

    try:
        array = np.array(onnx.numpy_helper.to_array(tensor))
        # Older versions of onnx widen bfloat16 to float32.
        return (
            array.astype(named_dtype("bfloat16")) if tensor.data_type == onnx.TensorProto.BFLOAT16 else array
        )
    except (TypeError, ValueError, OSError) as error:
        kind = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
        raise ModelLoadError(f"tensor {tensor.name!r} ({kind}) is not readable: {error}") from error


def _is_float(value: Any) -> bool:
    """A value without a declared type is taken for floats: the reader finds out."""
    kind = value.type.WhichOneof("value")
    return kind is None or (kind == "tensor_type" and value.type.tensor_type.elem_type in (0, 1, 10, 11, 16))


def _dtype(value: Any) -> InputDtype:
    import onnx  # noqa: PLC0415

    kind = value.type.WhichOneof("value")
    if kind not in (None, "tensor_type"):
        raise ModelLoadError(f"input {value.name!r} is a {kind}: expected a tensor")
    name = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
    name = {"undefined": "float32", "float": "float32", "double": "float64"}.get(name, name)
    if name not in get_args(InputDtype):
        raise ModelLoadError(f"input {value.name!r} is of {name}: expected {', '.join(get_args(InputDtype))}")
    return cast(InputDtype, name)


def _shape(value: Any) -> tuple[int | None, ...] | None:
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(
        size.dim_value if size.HasField("dim_value") and size.dim_value > 0 else None
        for size in kind.shape.dim
    )
