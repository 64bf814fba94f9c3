# SPDX-License-Identifier: Apache-2.0
"""Weights as the kernels read them: zero-padded to whole tiles, gate after projection, biases in float32.
Runs once per load, on the CPU. Padding adds nothing to a sum because the kernels also keep zeros in the padded
columns of activations: zero weights alone would turn an infinity into NaN."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fused_mlp.kernels.cuda.planning.columns import positions
from fused_mlp.kernels.cuda.planning.forward import ForwardPlan, Matrices, Vectors
from fused_mlp.kernels.cuda.planning.tiles import Tile
from fused_mlp.kernels.cuda.planning.whole_steps import plan_whole
from fused_mlp.kernels.lookups import Lookups
from fused_mlp.models import Mlp
from fused_mlp.models.importers.torch.tensors import TORCH_DTYPES, to_tensor
from fused_mlp.models.program.spec import Gated, Linear


def pack(mlp: Mlp, forward: ForwardPlan) -> list[Tensor]:
    """The tensors that the arguments of a forward pass number."""
    if forward.lookups is not None:
        rest = replace(forward, lookups=None)
        return [*pack(forward.lookups.rest_of(mlp), rest), *_pack_lookups(mlp, forward.lookups)]
    if forward.tile.strategy == "whole":
        return list(_pack_whole(mlp, forward.tile))
    return [
        _pack_matrices(mlp, each) if isinstance(each, Matrices) else _pack_vectors(mlp, each)
        for each in forward.tensors
    ]


_KINDS = {"sum": 1, "mean": 2, "max": 3}


def _pack_lookups(mlp: Mlp, lookups: Lookups) -> tuple[Tensor, Tensor]:
    """All tables end to end, and the parts in the order in which `gather_kernel` reads them."""
    tensors, places, at = mlp.tensors(), {"": 0}, 0
    for name in lookups.tables:
        places[name] = at
        at += tensors[name].size
    tables = torch.empty(at, dtype=TORCH_DTYPES[mlp.spec.dtype])
    for name in lookups.tables:
        tables[places[name] :][: tensors[name].size] = to_tensor(tensors[name]).flatten()
    numbers = [
        (
            _KINDS[each.mode] if each.table else 0,
            each.word, each.count, each.features, each.column, each.padding, each.factors, places[each.table],
        )
        for each in lookups.parts
    ]  # fmt: skip
    return tables, torch.tensor(numbers, dtype=torch.int64)


def _pack_matrices(mlp: Mlp, each: Matrices) -> Tensor:
    """(1 or 2 matrices) x (n, k)."""
    halves = _halves(each.step)
    weights = torch.zeros((len(halves), each.n, each.k), dtype=TORCH_DTYPES[mlp.spec.dtype])
    for index, half in enumerate(halves):
        weight = mlp.tensor(each.step, f"{half}weight")
        assert weight is not None
        weights[index, : weight.shape[0], : weight.shape[1]] = to_tensor(weight)
    return weights


def _pack_vectors(mlp: Mlp, each: Vectors) -> Tensor:
    """(1 or 2 biases) x (n,) and (weight, bias) x (width,), float32, zero where there is none; nothing for a row pass
    that has neither."""
    halves = () if each.step is None else _halves(each.step)
    biases = torch.zeros((len(halves), each.n))
    for index, half in enumerate(halves):
        assert each.step is not None
        bias = mlp.tensor(each.step, f"{half}bias")
        if bias is not None:
            biases[index, : bias.shape[0]] = to_tensor(bias).float()
    scaled = None if each.row is None else each.row.scaled
    if scaled is None:
        return biases.flatten()
    vectors = torch.zeros((2, each.width))
    for index, name in enumerate(("weight", "bias")):
        vector = mlp.tensor(scaled, name)
        if vector is not None:
            vectors[index, : vector.shape[0]] = to_tensor(vector).float()
    return torch.cat([biases.flatten(), vectors.flatten()])


def _halves(step: Linear | Gated) -> tuple[str, ...]:
    return ("", "gate_") if isinstance(step, Gated) else ("",)


def _pack_whole(mlp: Mlp, tile: Tile) -> tuple[Tensor, Tensor]:
    """All tensors end to end: one flat tensor of weights, one of biases and other vectors. Rows and columns are where
    the tiles have them."""
    plan = plan_whole(mlp.spec, tile)
    weights = torch.zeros(max(plan.weights, 1), dtype=TORCH_DTYPES[mlp.spec.dtype])
    vectors = torch.zeros(max(plan.vectors, 1))
    for each in plan.packed:
        step = each.step
        rows = _positions(each.out_counts, tile)
        columns = _positions(each.in_counts, tile)
        if isinstance(each.tensors, (Linear, Gated)):
            for index, half in enumerate(_halves(each.tensors)):
                weight, bias = (
                    mlp.tensor(each.tensors, f"{half}weight"),
                    mlp.tensor(each.tensors, f"{half}bias"),
                )
                assert weight is not None
                matrix = weights[step.weights :][index * step.n * step.k :][: step.n * step.k]
                matrix = matrix.view(step.n, step.k)
                at_rows = torch.arange(weight.shape[0]) if rows is None else rows
                at_columns = torch.arange(weight.shape[1]) if columns is None else columns
                matrix[at_rows[:, None], at_columns[None, :]] = to_tensor(weight)
                if bias is not None:
                    vectors[step.vectors + index * step.n + at_rows] = to_tensor(bias).float()
            continue
        assert rows is not None
        for index, name in enumerate(("weight", "bias")):
            vector = mlp.tensor(each.tensors, name)
            if vector is not None:
                vectors[step.vectors + index * step.n + rows] = to_tensor(vector).float()
    return weights, vectors


def _positions(counts: tuple[int, ...] | None, tile: Tile) -> Tensor | None:
    return None if counts is None else torch.tensor(positions(counts, tile.chunk))
