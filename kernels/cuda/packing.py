"""Weights as the kernels read them: zero-padded to whole tiles, gate after projection, biases in float32.
Runs once per load, on the CPU. Padding adds nothing to a sum because the kernels also keep zeros in the padded
columns of activations: zero weights alone would turn an infinity into NaN."""

from __future__ import annotations

import torch
from torch import Tensor

from fused_mlp.kernels.cuda.plans import last_block, pad
from fused_mlp.kernels.cuda.tiles import Tile
from fused_mlp.models import LayerWeights, Mlp
from fused_mlp.models.importers.torch_tensors import to_tensor


def pack_layer(layer: LayerWeights, n_padded: int, k_padded: int) -> tuple[Tensor, Tensor]:
    """weights: (1 or 2 matrices) x (n_padded, k_padded); biases: (1 or 2) x (n_padded,) float32, zero if
    absent."""
    pairs = [(layer.weight, layer.bias)]
    if layer.gate_weight is not None:
        pairs.append((layer.gate_weight, layer.gate_bias))
    weights = torch.zeros((len(pairs), n_padded, k_padded), dtype=to_tensor(layer.weight).dtype)
    biases = torch.zeros((len(pairs), n_padded), dtype=torch.float32)
    for index, (weight, bias) in enumerate(pairs):
        weights[index, : weight.shape[0], : weight.shape[1]] = to_tensor(weight)
        if bias is not None:
            biases[index, : bias.shape[0]] = to_tensor(bias).float()
    return weights, biases


def pack_whole(mlp: Mlp, tile: Tile) -> tuple[Tensor, Tensor]:
    """All layers end to end: one flat tensor of weights, one of biases. Hidden widths become tile.width."""
    spec = mlp.spec
    last = len(mlp.layers) - 1
    weights: list[Tensor] = []
    biases: list[Tensor] = []
    for index, layer in enumerate(mlp.layers):
        n_padded = pad(spec.out_features, last_block(spec, tile)) if index == last else tile.width
        k_padded = pad(spec.in_features, tile.block_k) if index == 0 else tile.width
        weight, bias = pack_layer(layer, n_padded, k_padded)
        weights.append(weight.flatten())
        biases.append(bias.flatten())
    return torch.cat(weights), torch.cat(biases)
