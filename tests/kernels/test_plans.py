# SPDX-License-Identifier: Apache-2.0
"""Plans are the same in every process: a row has the same bits after a restart and on every replica."""

from __future__ import annotations

import os
import subprocess
import sys

# Prints the plans of random programs: of the CPU kernel, and for each strategy on a GPU.
_PLANS = """
from fused_mlp.kernels.backends.cpu_placement import place
from fused_mlp.kernels.cuda.planning.architectures import ARCHITECTURES
from fused_mlp.kernels.cuda.planning.forward import plan_forward
from fused_mlp.kernels.cuda.planning.rule import candidate_tiles
from fused_mlp.kernels.lookups import unsupported
from tests.support.random_programs import random_program

for seed in range(40):
    spec = random_program(seed, steps=30, tables=seed % 2 == 1)
    placed = place(spec)
    print(seed, placed.operations, placed.places, placed.scratch, sorted(placed.free_to_the_right))
    if unsupported(spec) is None:
        tiles = {tile.strategy: tile for tile in candidate_tiles(spec, ARCHITECTURES[0])}
        print(seed, [plan_forward(spec, tile) for tile in tiles.values()])
"""


def plans(seed: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PLANS],
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_plans_do_not_depend_on_the_seed_of_hashes() -> None:
    first, second = plans(1).splitlines(), plans(2).splitlines()
    assert len(first) > 40
    assert [a for a, b in zip(first, second, strict=True) if a != b] == []
