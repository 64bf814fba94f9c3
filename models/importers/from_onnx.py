# SPDX-License-Identifier: Apache-2.0
"""`fused_mlp.from_onnx`: an MLP from an ONNX file. onnx/rows.py reads the graph into the builder of programs, and
onnx/check.py compares the result with the graph."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fused_mlp.models.errors import ModelLoadError, first_line
from fused_mlp.models.importers.building.builder import Builder
from fused_mlp.models.importers.building.nodes import Place, Source
from fused_mlp.models.importers.building.rows import Rows
from fused_mlp.models.importers.onnx.categories import Categories
from fused_mlp.models.importers.onnx.check import check, source_name
from fused_mlp.models.importers.onnx.graph import GivenInput, Graph, read_graph
from fused_mlp.models.importers.onnx.operators.values import Unreadable, Value
from fused_mlp.models.importers.onnx.rows import RowsReader
from fused_mlp.models.importers.onnx.vocabularies import Vocabulary, vocabularies
from fused_mlp.models.importers.verification import keeping_apart
from fused_mlp.models.program.spec import Dtype
from fused_mlp.models.weights.mlp import Mlp
from fused_mlp.models.weights.precision import reduce_precision
from fused_mlp.models.weights.quantization import Precision


def from_onnx(
    path: str | os.PathLike[str], *, dtype: Dtype | None = None, precision: Precision | None = None
) -> Mlp:
    """Read the MLP in an ONNX file. Needs the package `onnx`: `pip install 'fused-mlp[onnx]'`.

    Any graph is taken from rows of floats, ids and words to rows of floats that the steps of a program can express; the
    result is compared with the graph, or a warning says that onnx cannot run the graph. Several inputs keep their
    names, and several outputs become heads. Class labels beside probabilities are left out, and `Mlp.source` says so.

    Args:
        path: The `.onnx` file; its external data, if any, lies beside it.
        dtype: Round the weights to this dtype. Without it they keep theirs; float64 is not served, and is refused.
        precision: Keep the weights in "bfloat16" or "int8", as for `from_torch`. A quantised graph stays int8 unless
            you say "float32" or a `dtype`.

    Returns:
        The model.

    Raises:
        ModelLoadError: The file is no ONNX model, or has a part that cannot be represented; the text names its node.
    """
    return reduce_precision(read_onnx(path, dtype), precision)


def read_onnx(path: str | os.PathLike[str], dtype: Dtype | None) -> Mlp:
    """In floats; `Mlp.quantized` tells what was int8."""
    path = Path(path)
    if not path.is_file():
        raise ModelLoadError(f"{path}: no such file")
    try:
        graph = read_graph(path)
        with np.errstate(all="ignore"):  # Mlp refuses weights that are not finite
            return _convert(graph, dtype, path.name)
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from error
    except Exception as error:  # whatever numpy and onnx say of numbers that are used in odd ways
        text = f"{type(error).__name__}: {first_line(error)}"
        raise ModelLoadError(f"{path}: not a readable ONNX file: {text}") from error


def _convert(graph: Graph, dtype: Dtype | None, file: str) -> Mlp:
    return keeping_apart(lambda apart: _converted(graph, dtype, file, apart))


def _converted(graph: Graph, dtype: Dtype | None, file: str, apart: bool) -> Mlp:
    words = vocabularies(graph)
    builder = _builder(graph, words, apart)
    reader = RowsReader(graph, builder, words)
    values = reader.read()
    heads, left_out = _heads(graph, values, builder)
    for name, value in heads.items():
        ours = name if len(heads) > 1 else "output"
        with builder.at(Place(f"output {ours!r}", ours)):
            builder.output(ours, value)
    mlp = builder.finish(dtype)
    check(graph, builder.exact(), list(heads), apart, reader.row_values)
    if left_out:
        names = " and ".join(map(repr, left_out))
        mlp = mlp.annotated(
            source=f"imported from {file} without its output {names}: class labels, not numbers"
        )
    if reader.labels is not None and len(reader.labels) == mlp.spec.output_widths[0]:
        mlp = mlp.annotated(labels=reader.labels)
    return mlp


def _builder(graph: Graph, words: Mapping[str, Vocabulary], apart: bool) -> Builder:
    """One input of floats has no name and no type; several, ids and words have both."""
    first = graph.inputs[0]
    if len(graph.inputs) == 1 and first.type == "f" and (first.shape is None or len(first.shape) > 1):
        shape = _row_shape(graph, first)
        builder = Builder(math.prod(shape), shape, apart=apart)
        # For the case that some are ids.
        builder.sources = (Source(source_name(first.name), shape, first.dtype),)
        return builder
    sources = []
    for each in graph.inputs:
        if each.shape is None or None in each.shape[1:] or not each.shape:
            raise ModelLoadError(
                f"input {each.name!r} has shape {each.shape}: expected (rows, ...) with a known number of values for "
                "each row; set it in the file"
            )
        vocabulary = words.get(each.name)
        known = None if vocabulary is None else tuple(vocabulary.words)
        unknown = None if vocabulary is None else vocabulary.unknown
        # A column, (rows, 1), may be sent as (rows,) too: that is how tables have it.
        shape = tuple(size for size in each.shape[1:] if size is not None)
        shape = () if shape == (1,) else shape
        sources.append(Source(source_name(each.name), shape, each.dtype, known, unknown))
    return Builder(sources=sources, apart=apart)


def _heads(graph: Graph, values: dict[str, Value], builder: Builder) -> tuple[dict[str, Rows], list[str]]:
    """The outputs that are rows of floats, and the names of class labels, which are not. Whole numbers become floats
    where a model answers nothing else."""
    numbers = {
        name: value.floats(builder) if isinstance(value, Categories) else value
        for name, value in values.items()
        if isinstance(value, (Rows, Categories))
    }
    floats = {each.name for each in graph.outputs if each.is_float} & numbers.keys()
    heads = {name: value for name, value in numbers.items() if name in floats or not floats}
    left_out = [name for name in values if name not in heads]
    for output in graph.outputs:
        value = values[output.name]
        if isinstance(value, Unreadable) and (output.is_float or not heads):
            raise ModelLoadError(value.text)
        if output.name in left_out and (output.is_float or not heads):
            raise ModelLoadError(f"output {output.name!r} does not depend on the input")
    return heads, left_out


def _row_shape(graph: Graph, given: GivenInput) -> tuple[int, ...]:
    """The shape of a row: as declared, or as the first weights want it."""
    declared = given.shape
    if declared is not None and None not in declared[1:]:
        return tuple(size for size in declared[1:] if size is not None)
    if declared is not None and declared[-1] is not None:  # (batch, sequence, features): all of them are rows
        return (declared[-1],)
    for node in graph.nodes:
        weights = [graph.constants[name] for name in node.inputs if name in graph.constants]
        if node.op in ("Gemm", "MatMul") and weights and weights[0].ndim == 2:
            return (weights[0].shape[1 if node.attributes.get("transB", 0) else 0],)
    raise ModelLoadError(
        f"input {given.name!r} declares no width, and there is no first layer to tell it: set it in the file"
    )
