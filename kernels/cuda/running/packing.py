"""Weights as the kernels read them: zero-padded to whole tiles, gate after projection, biases in float32.
Runs once per load, on the CPU. Padding adds nothing to a sum because the kernels also keep zeros in the padded
columns of activations: zero weights alone would turn an infinity into NaN."""

from __future__ import annotations

import torch
from torch import Tensor

from fused_mlp.kernels.cuda.planning.columns import positions
from fused_mlp.kernels.cuda.planning.stages import RowPass
from fused_mlp.kernels.cuda.planning.tiles import Tile
from fused_mlp.kernels.cuda.planning.whole_steps import plan_whole
from fused_mlp.models import Mlp
from fused_mlp.models.importers.torch.tensors import TORCH_DTYPES, to_tensor
from fused_mlp.models.spec import Gated, Linear


def pack_product(mlp: Mlp, step: Linear | Gated, n_padded: int, k_padded: int) -> tuple[Tensor, Tensor]:
    """weights: (1 or 2 matrices) x (n_padded, k_padded); biases: (1 or 2) x (n_padded,) float32, zero if
    absent."""
    halves = ("", "gate_") if isinstance(step, Gated) else ("",)
    weights = torch.zeros((len(halves), n_padded, k_padded), dtype=TORCH_DTYPES[mlp.spec.dtype])
    biases = torch.zeros((len(halves), n_padded), dtype=torch.float32)
    for index, half in enumerate(halves):
        weight, bias = mlp.tensor(step, f"{half}weight"), mlp.tensor(step, f"{half}bias")
        assert weight is not None
        weights[index, : weight.shape[0], : weight.shape[1]] = to_tensor(weight)
        if bias is not None:
            biases[index, : bias.shape[0]] = to_tensor(bias).float()
    return weights, biases


def pack_vectors(mlp: Mlp, row: RowPass | None, width: int) -> Tensor:
    """Weight and bias of a row pass: (2 x width,) float32, zero if absent; nothing if it has neither."""
    if row is None or row.scaled is None:
        return torch.zeros(0)
    vectors = torch.zeros((2, width))
    for index, name in enumerate(("weight", "bias")):
        vector = mlp.tensor(row.scaled, name)
        if vector is not None:
            vectors[index, : vector.shape[0]] = to_tensor(vector).float()
    return vectors.flatten()


def pack_whole(mlp: Mlp, tile: Tile) -> tuple[Tensor, Tensor]:
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
            for index, half in enumerate(("", "gate_") if isinstance(each.tensors, Gated) else ("",)):
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
