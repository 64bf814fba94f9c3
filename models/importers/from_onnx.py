"""`fused_mlp.from_onnx`: an MLP from an ONNX file. onnx_rows.py reads the graph's steps, which become layers here;
the arithmetic between them is matched with the activations or refused."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.activation_match import (
    HALF_TOLERANCE,
    TOLERANCE,
    match_activation,
    match_affine,
)
from fused_mlp.models.importers.assembly import Assembler
from fused_mlp.models.importers.onnx_graph import Graph, read_graph
from fused_mlp.models.importers.onnx_rows import Rows, RowsReader, Step
from fused_mlp.models.spec import Dtype
from fused_mlp.models.weights import Mlp


def from_onnx(path: str | os.PathLike[str], *, dtype: Dtype | None = None) -> Mlp:
    """The MLP in an ONNX file. Needs the `onnx` package: `pip install 'fused-mlp[onnx]'`.

    Understands Gemm, MatMul and Add, every usual spelling of the activations, gates, batch norms and input
    normalisations (folded), Flatten and Reshape at the front. `dtype` rounds the weights; without it they
    keep theirs, and float64, which is not served, is refused."""
    if not Path(path).is_file():
        raise ModelLoadError(f"{path}: no such file")
    try:
        return _convert(read_graph(Path(path)), dtype)
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from error


@np.errstate(
    all="ignore"
)  # activations are evaluated where they overflow; Mlp refuses weights that are not finite
def _convert(graph: Graph, dtype: Dtype | None) -> Mlp:
    chain = [RowsReader(graph).read()]
    while (source := chain[-1].step.source) is not None:
        chain.append(source)
    chain.reverse()
    half = any(array.dtype.name in ("float16", "bfloat16") for array in graph.constants.values())
    tolerance = HALF_TOLERANCE if half else TOLERANCE
    assembler = Assembler()
    for rows in chain:
        _add_step(assembler, rows.step, tolerance)
        _add_function(assembler, rows, tolerance)
    mlp = assembler.finish(dtype)
    _check_input(graph, chain[0].step, mlp.spec.in_features)
    return mlp


def _add_step(assembler: Assembler, step: Step, tolerance: float) -> None:
    if step.kind == "linear":
        assert step.linear is not None
        assembler.linear(step.where, *step.linear)
    elif step.kind == "gated":
        assert step.linear is not None
        assert step.gate is not None
        assert step.gate_function is not None
        found = match_activation(step.gate_function, tolerance)
        if found is None:
            raise ModelLoadError(f"{step.where}: its gate computes none of the activations of an MLP")
        assembler.gated(step.where, step.gate, step.linear, *found)
    elif step.kind == "affine":
        assert step.affine is not None
        assembler.affine(step.where, *step.affine)
    elif step.kind != "input":
        assembler.activation(step.where, step.kind)


def _add_function(assembler: Assembler, rows: Rows, tolerance: float) -> None:
    if rows.untouched:
        return
    activation = match_activation(rows.function, tolerance)
    affine = match_affine(rows.function)
    if activation is not None:
        assembler.activation(rows.where, *activation)
    elif affine is not None:
        assembler.affine(rows.where, *map(np.asarray, affine))
    else:
        raise ModelLoadError(
            f"{rows.where} and the arithmetic before it compute none of the activations of an MLP"
        )


def _check_input(graph: Graph, start: Step, in_features: int) -> None:
    """Refuse a file whose declared input width is not that of its first layer."""
    sizes = graph.input_shape
    if not sizes:
        return
    row = sizes[1:] if start.flattened else sizes[-1:]
    known = [size for size in row if size is not None]
    if len(known) == len(row) and math.prod(known) != in_features:
        size = math.prod(known)
        raise ModelLoadError(
            f"input {graph.input_name!r} has rows of {size} values, the first layer takes {in_features}"
        )
