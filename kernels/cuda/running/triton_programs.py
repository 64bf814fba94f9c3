"""The Triton strategies as programs: weights on a device, and `enqueue`, which launches the plan on static
buffers. The only module besides the kernels themselves and the check that imports triton. Runs under graph
capture."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fused_mlp.kernels.cuda.device import KERNELS
from fused_mlp.kernels.cuda.planning.plans import Launch, LaunchPlan, layered_launches, whole_plan
from fused_mlp.kernels.cuda.planning.stages import RowPass
from fused_mlp.kernels.cuda.planning.tiles import Tile
from fused_mlp.kernels.cuda.running.packing import pack_product, pack_vectors, pack_whole
from fused_mlp.kernels.cuda.running.program import Allocate
from fused_mlp.kernels.fusion import Product
from fused_mlp.models import Mlp
from fused_mlp.models.importers.torch.tensors import TORCH_DTYPES


class WholeProgram:
    """The entire MLP in one launch."""

    launches = 1

    def __init__(self, mlp: Mlp, tile: Tile, device: torch.device) -> None:
        self.label = tile.label
        self._launch = Launcher(whole_plan(mlp.spec, tile))
        weights, biases = pack_whole(mlp, tile)
        self._weights, self._biases = weights.to(device), biases.to(device)

    def workspace(self, rows: int, allocate: Allocate) -> tuple[Tensor, ...]:
        return ()

    def enqueue(self, x: Tensor, y: Tensor, rows: int, workspace: tuple[Tensor, ...]) -> None:
        self._launch(rows, x, self._weights, self._biases, y, rows)


class LayeredProgram:
    """One launch per product or row pass; values are where `placement` put them."""

    def __init__(self, mlp: Mlp, tile: Tile, device: torch.device) -> None:
        self.label = tile.label
        self._launches, self._scratch = layered_launches(mlp.spec, tile)
        self.launches = len(self._launches)
        self._launchers = [Launcher(each.plan) for each in self._launches]
        self._dtype = TORCH_DTYPES[mlp.spec.dtype]
        self._tensors: list[tuple[Tensor, ...]] = []
        matrices: dict[
            str, Tensor
        ] = {}  # by the prefix of their names: a module that is called twice is kept once
        for each in self._launches:
            weights, vectors = _pack(mlp, each)
            if isinstance(each.stage, Product) and weights is not None:
                prefix = each.stage.step.prefix
                weights = matrices[prefix] = matrices[prefix] if prefix in matrices else weights.to(device)
            self._tensors.append((*(() if weights is None else (weights,)), vectors.to(device)))

    def workspace(self, rows: int, allocate: Allocate) -> tuple[Tensor, ...]:
        return tuple(allocate((rows, size), self._dtype) for size in self._scratch)

    def enqueue(self, x: Tensor, y: Tensor, rows: int, workspace: tuple[Tensor, ...]) -> None:
        buffers = (x, y, *workspace)
        for each, run, tensors in zip(self._launches, self._launchers, self._tensors, strict=True):
            source, other, target = (buffers[at] for at in each.buffers)
            arguments = (source, other, *tensors, target)
            run(rows, *arguments, *((rows,) if each.plan.kernel == "layer" else ()))


def _pack(mlp: Mlp, each: Launch) -> tuple[Tensor | None, Tensor]:
    """The matrices of a product; its biases and the vectors of a row pass."""
    if isinstance(each.stage, RowPass):
        return None, pack_vectors(mlp, each.stage, mlp.spec.widths_by_name[each.stage.source])
    n_padded, k_padded = each.plan.constants["N_PADDED"], each.plan.constants["W_ROW"]
    assert isinstance(n_padded, int)
    assert isinstance(k_padded, int)
    weights, biases = pack_product(mlp, each.stage.step, n_padded, k_padded)
    return weights, torch.cat([biases.flatten(), pack_vectors(mlp, each.tail, n_padded)])


class Launcher:
    """Launches a plan with those of its options with which the kernel spills least. The first call finds them: it is
    the warm-up, which no graph records and whose results nothing reads."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan
        self._options = plan.options

    def __call__(self, rows: int, *arguments: Tensor | int) -> None:
        found: dict[int, Mapping[str, int | None]] = {}
        for options in self._options:
            spilled = launch(self._plan, options, rows, *arguments)
            found.setdefault(spilled, options)
            if not spilled:
                break
        self._options = (found[min(found)],)


def launch(plan: LaunchPlan, options: Mapping[str, int | None], rows: int, *arguments: Tensor | int) -> int:
    """How much local memory a thread needs, in registers: what it spills, and tables of functions such as cos. The
    interpreter, which compiles nothing, needs none."""
    compiled = KERNELS[plan.kernel][(plan.grid(rows),)](*arguments, **plan.constants, **options)
    return getattr(compiled, "n_spills", 0)
