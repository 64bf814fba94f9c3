"""An ONNX file as plain Python and numpy: nodes, constants, one input, one output. The only module that
touches the `onnx` package, an extra, which is imported when the first file is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fused_mlp.models.dtypes import Array, named_dtype
from fused_mlp.models.errors import ModelLoadError


@dataclass(frozen=True)
class Node:
    index: int
    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]

    @property
    def where(self) -> str:
        """How error texts name it."""
        return f"node {self.index} {self.name!r}: {self.op}" if self.name else f"node {self.index}: {self.op}"


@dataclass(frozen=True)
class Graph:
    """`input_shape` has None for sizes left open and is None itself when the file declares no shape."""

    nodes: tuple[Node, ...]
    constants: dict[str, Array]
    input_name: str
    input_shape: tuple[int | None, ...] | None
    output_name: str


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
        model = onnx.load(path)
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
    except Exception as error:  # whatever a parser may say about a damaged file
        text = " ".join(str(error).split())[:200]
        raise ModelLoadError(f"not a readable ONNX file: {text or type(error).__name__}") from error
    graph = model.graph
    constants = {tensor.name: _to_array(tensor) for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    if len(inputs) != 1 or len(graph.output) != 1:
        raise ModelLoadError(
            f"an MLP has one input and one output, this graph {len(inputs)} and {len(graph.output)}"
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
        )
        for index, node in enumerate(graph.node)
    )
    return Graph(nodes, constants, inputs[0].name, _shape(inputs[0]), graph.output[0].name)


def _attribute(attribute: Any) -> Any:
    import onnx  # noqa: PLC0415

    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return _to_array(value)
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


def _shape(value: Any) -> tuple[int | None, ...] | None:
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(size.dim_value if size.HasField("dim_value") else None for size in kind.shape.dim)
