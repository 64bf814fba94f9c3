# SPDX-License-Identifier: Apache-2.0
"""Which tile a model runs with when nothing was timed: the documented rule by width, depth and batch. Also
the order in which candidates are tried. Imports no triton."""

from __future__ import annotations

from fused_mlp.kernels.cuda.planning.architectures import Architecture
from fused_mlp.kernels.cuda.planning.plans import precision_of
from fused_mlp.kernels.cuda.planning.splitting import is_split
from fused_mlp.kernels.cuda.planning.stages import RowPass, stages_of
from fused_mlp.kernels.cuda.planning.tiles import Tile, select_tiles
from fused_mlp.kernels.cuda.planning.whole_steps import fits, plan_whole
from fused_mlp.kernels.fusion import Product
from fused_mlp.kernels.lookups import lookups_of
from fused_mlp.models import MlpSpec

KIB = 1024
# In `whole` every program reads all weights, through one multiprocessor (some 100 GB/s from L2): past this
# size a batch that fills few of them waits longer for weights than the launches it saves.
WHOLE_WEIGHT_BYTES = 1024 * KIB
# Without tensor cores 16 rows x 256 x 256 take one multiprocessor about 10 us per layer; spread over many, 2.
WHOLE_IEEE_WIDTH = 128
# `whole` unrolls its steps: past this depth compiling takes minutes.
MAX_WHOLE_PRODUCTS = 16
MAX_WHOLE_PASSES = 16
# From here on blocks of 16 rows no longer gain by filling more multiprocessors, and re-read weights for
# nothing.
LARGE_BATCH_ROWS = 1024


def tile_by_rule(spec: MlpSpec, architecture: Architecture, rows: int, tf32: bool = False) -> Tile:
    """One launch while the weights are small enough for one multiprocessor to read; else layer by layer.
    Small blocks of rows for small batches, large ones from LARGE_BATCH_ROWS up."""
    spec = _dense(spec)
    precision = precision_of(spec, tf32)
    tiles = [
        tile
        for tile in candidate_tiles(spec, architecture, tf32)
        if tile.precision == precision and not tile.split
    ]
    whole = [tile for tile in tiles if tile.strategy == "whole" and _suits_whole(spec, tile)]
    chosen = whole or [tile for tile in tiles if tile.strategy == "layered"]
    return chosen[-1] if rows >= LARGE_BATCH_ROWS else chosen[0]


def candidate_tiles(spec: MlpSpec, architecture: Architecture, tf32: bool = False) -> list[Tile]:
    """Every row of the table that can run the model, `whole` first, smallest blocks first."""
    spec = _dense(spec)
    stages = stages_of(spec)
    products = [stage.step for stage in stages if isinstance(stage, Product)]
    passes = sum(isinstance(stage, RowPass) for stage in stages)
    short = len(products) <= MAX_WHOLE_PRODUCTS and passes <= MAX_WHOLE_PASSES
    return select_tiles(
        architecture,
        precision_of(spec, tf32),
        fits=lambda tile: short and fits(plan_whole(spec, tile), tile),
        splits=lambda tile: any(
            is_split(spec.widths_by_name[step.input], -(-step.out_features // tile.block_n))
            for step in products
        ),
    )


def _dense(spec: MlpSpec) -> MlpSpec:
    """The program that runs after the lookups."""
    lookups = lookups_of(spec)
    return spec if lookups is None else lookups.rest


def _suits_whole(spec: MlpSpec, tile: Tile) -> bool:
    if tile.precision == "ieee" and tile.width > WHOLE_IEEE_WIDTH:
        return False
    return packed_bytes(spec, tile) <= WHOLE_WEIGHT_BYTES


def packed_bytes(spec: MlpSpec, tile: Tile) -> int:
    """Bytes of weights after padding for `whole`."""
    return plan_whole(spec, tile).weights * (4 if spec.dtype == "float32" else 2)
