"""The Triton strategies as programs: weights on a device, and `enqueue`, which launches the plan on static
buffers. The only module besides the kernels themselves and the check that imports triton. Runs under graph
capture."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fused_mlp.kernels.cuda.layer_kernel import layer_kernel, softmax_kernel
from fused_mlp.kernels.cuda.packing import pack_layer, pack_whole
from fused_mlp.kernels.cuda.plans import KernelName, LaunchPlan, layered_plans, scratch_row, whole_plan
from fused_mlp.kernels.cuda.program import Allocate
from fused_mlp.kernels.cuda.tiles import Tile
from fused_mlp.kernels.cuda.whole_kernel import whole_kernel
from fused_mlp.models import Mlp
from fused_mlp.models.importers.torch_tensors import TORCH_DTYPES

KERNELS: dict[KernelName, Any] = {"whole": whole_kernel, "layer": layer_kernel, "softmax": softmax_kernel}


class WholeProgram:
    """The entire MLP in one launch."""

    launches = 1

    def __init__(self, mlp: Mlp, tile: Tile, device: torch.device) -> None:
        self.label = tile.label
        self._plan = whole_plan(mlp.spec, tile)
        weights, biases = pack_whole(mlp, tile)
        self._weights, self._biases = weights.to(device), biases.to(device)

    def workspace(self, rows: int, allocate: Allocate) -> tuple[Tensor, ...]:
        return ()

    def enqueue(self, x: Tensor, y: Tensor, rows: int, workspace: tuple[Tensor, ...]) -> None:
        launch(self._plan, rows, x, self._weights, self._biases, y, rows)


class LayeredProgram:
    """One launch per layer; activations alternate between two buffers."""

    def __init__(self, mlp: Mlp, tile: Tile, device: torch.device) -> None:
        self.label = tile.label
        self._plans = layered_plans(mlp.spec, tile)
        self.launches = len(self._plans)
        self._dtype = TORCH_DTYPES[mlp.spec.dtype]
        hidden = [scratch_row(layer.out_features) for layer in mlp.spec.layers[:-1]]
        # Buffer 0 holds the outputs of layers 0, 2, ..., buffer 1 those of layers 1, 3, ...
        self._row_sizes = [max(hidden[start::2]) for start in (0, 1) if hidden[start::2]]
        self._layers: list[tuple[Tensor, Tensor]] = []
        for plan, layer in zip(self._plans, mlp.layers, strict=False):
            n_padded, k_padded = plan.constants["N_PADDED"], plan.constants["W_ROW"]
            assert isinstance(n_padded, int)
            assert isinstance(k_padded, int)
            weights, biases = pack_layer(layer, n_padded, k_padded)
            self._layers.append((weights.to(device), biases.to(device)))

    def workspace(self, rows: int, allocate: Allocate) -> tuple[Tensor, ...]:
        return tuple(allocate((rows, size), self._dtype) for size in self._row_sizes)

    def enqueue(self, x: Tensor, y: Tensor, rows: int, workspace: tuple[Tensor, ...]) -> None:
        source = x
        for index, (weights, biases) in enumerate(self._layers):
            target = y if index == len(self._layers) - 1 else workspace[index % 2]
            launch(self._plans[index], rows, source, weights, biases, target, rows)
            source = target
        for plan in self._plans[len(self._layers) :]:
            launch(plan, rows, y)


def launch(plan: LaunchPlan, rows: int, *arguments: Tensor | int) -> None:
    KERNELS[plan.kernel][(plan.grid(rows),)](*arguments, **plan.constants, **plan.options)
