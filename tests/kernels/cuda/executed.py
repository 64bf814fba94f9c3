# SPDX-License-Identifier: Apache-2.0
"""Run by test_executed.py: the cases of interpreted.py on compiled PTX, in the precision named, one case in `every`;
each on the next architecture. Prints one JSON object per case."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import torch

from fused_mlp.kernels.cuda.planning.architectures import Architecture, architecture_of
from fused_mlp.kernels.cuda.planning.rule import candidate_tiles
from fused_mlp.kernels.cuda.planning.tiles import Tile
from fused_mlp.kernels.cuda.running.triton_programs import Binary
from fused_mlp.models import Mlp, MlpSpec
from tests.kernels.cuda import interpreted
from tests.kernels.cuda.compiled import PtxLauncher
from tests.kernels.cuda.random_models import make_spec
from tests.support.ptx import PtxError

CAPABILITIES = (80, 90, 100, 120)
PRECISIONS = {"float16": "float16", "bfloat16": "bfloat16", "tf32": "float32", "float32": "float32"}


class Cases:
    """Stands in for `interpreted.tiles`: which tiles a case runs with, and where."""

    def __init__(self, precision: str, every: int) -> None:
        self._launchers = {capability: PtxLauncher(capability) for capability in CAPABILITIES}
        self._tf32 = precision == "tf32"
        self._every = every
        self._turn = list(PRECISIONS).index(precision)  # so that precisions meet different architectures
        self._number = every - 4 - 5 * self._turn  # a sample begins with the widest, in fp16
        self.capability = CAPABILITIES[0]

    def as_method(self) -> Callable[..., None]:
        """Stands in for `Binary.launch`."""

        def launch(binary: Binary, rows: int, *arguments: torch.Tensor | int) -> None:
            self._launchers[self.capability](binary._plan, rows, *arguments)

        return launch

    def use(self, capability: int) -> Architecture:
        self.capability = capability
        found = architecture_of(capability)
        assert found is not None
        return found

    def tiles(self, spec: MlpSpec, *, all_blocks: bool = True) -> list[Tile]:
        """Without all_blocks, of each strategy one block after the other: tensor cores of sm_90 and sm_100 take 64 rows
        and more."""
        self._number += 1
        if self._number % self._every:
            return []
        self._turn += 1
        found = candidate_tiles(spec, self.use(CAPABILITIES[self._turn % 4]), self._tf32)
        kinds: dict[object, list[Tile]] = {}
        for tile in found:
            kinds.setdefault((tile.strategy, tile.split), []).append(tile)
        chosen = [each[self._turn // 4 % len(each)] for each in kinds.values()]
        if all_blocks and self._every <= 2:
            return [tile for tile in found if tile.precision != "tf32x3" or tile in chosen]
        return chosen


def allowance_in_tf32(mlp: Mlp, x: torch.Tensor, exact: torch.Tensor) -> float:
    """As eager in fp16, whose numbers have as many digits. Tensor cores cut off what tf32 does not hold: twice the
    error of rounding."""
    half = Mlp(mlp.spec.model_copy(update={"dtype": "float16"}), mlp.tensors())
    return 2 * interpreted.ordinary_allowance(half, x.half(), exact)


def wide(dtype: str) -> Iterator[dict[str, object]]:
    """Sums of up to 11008 products, in the order of the kernel."""
    for shape in ((2048, 64), (4096, 64), (64, 11008), (11008, 64), (4096, 11008, 64)):
        yield from interpreted.compare(make_spec(shape, "silu", dtype=dtype), 5)


def main(precision: str, every: int) -> None:
    cases = Cases(precision, every)
    interpreted.tiles = cases.tiles
    Binary.launch = cases.as_method()
    ordinary_run, faults = interpreted.run, []

    def run(mlp: Mlp, tile: Tile, x: torch.Tensor) -> torch.Tensor:
        """Buffers begin at multiples of 16 bytes, as a server's do. A fault fails its own case: NaN is no result."""
        try:
            return ordinary_run(mlp, tile, x.clone())
        except PtxError as error:
            faults.append(f"{type(error).__name__}: {error}")
            return torch.full((len(x), mlp.spec.out_features), torch.nan)

    interpreted.run = run
    interpreted.ordinary_allowance = interpreted.allowance
    if precision == "tf32":
        interpreted.allowance = allowance_in_tf32
        interpreted.RELATIVE = 2e-3
    for group in (wide, *interpreted.GROUPS):
        if group.__name__ in ("served", "launches"):
            cases.use(80)
        for result in group(PRECISIONS[precision]):
            line = {"group": group.__name__, "sm": cases.capability, **result}
            if faults:
                line |= {"ok": False, "faults": list(faults)}
                faults.clear()
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main(sys.argv[1], int(sys.argv[2]))
