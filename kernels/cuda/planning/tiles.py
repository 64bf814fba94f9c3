# SPDX-License-Identifier: Apache-2.0
"""The static configuration table: tile sizes, warps and stages by strategy, precision, width and
architecture. Every row was chosen by compiling it for each architecture it names (`python -m
fused_mlp.kernels.cuda.check`): the largest that neither spills nor exceeds shared memory in its heaviest use. Nothing
is tuned at serve time, except that a launcher asks the compiler twice where a kernel spills (`plans`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fused_mlp.kernels.cuda.planning.architectures import ARCHITECTURES, CAPABILITIES, Architecture

Strategy = Literal["whole", "layered"]
# half: fp16 and bf16. The others are ways to multiply float32: tf32 rounds the operands, tf32x3 multiplies each as a
# sum of two such numbers, in three products on tensor cores.
Precision = Literal["half", "tf32", "ieee", "tf32x3"]
PRECISIONS: tuple[Precision, ...] = ("half", "tf32", "ieee", "tf32x3")
FLOAT32: tuple[Precision, ...] = ("ieee", "tf32x3")  # where TF32 was not asked for
MAX_WHOLE_WIDTH = 256

# By how much shared memory a block may have: 163 KiB and more, or 99 KiB.
LARGE = (80, 90, 100)
SMALL = (86, 89, 120)


@dataclass(frozen=True)
class Tile:
    """One row. A program computes block_m rows; block_n columns of a layer (of the last one, in `whole`) at
    a time; block_k of the sum at a time. `whole` pads hidden layers to `width`, held as chunks of `chunk`
    columns."""

    strategy: Strategy
    precision: Precision
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    width: int = 0
    chunk: int = 0
    capabilities: tuple[int, ...] = CAPABILITIES
    program_width: int = 0  # of values that norms and the like are made of, where `width` would spill
    split: bool = False  # `layered`: long sums of small batches over several programs (see `splitting`)

    def __post_init__(self) -> None:
        sizes = [self.block_m, self.block_n, self.block_k]
        if self.strategy == "whole":
            sizes += [self.width, self.chunk]
            if self.width > MAX_WHOLE_WIDTH or self.chunk > self.width:
                raise ValueError(f"whole: expected chunk <= width <= {MAX_WHOLE_WIDTH}, got {self}")
        elif self.width or self.chunk:
            raise ValueError(f"layered tiles have neither width nor chunk, got {self}")
        # Tensor cores want 16 rows and 16 of K; Triton wants powers of two.
        if any(size < 16 or size & (size - 1) for size in sizes):
            raise ValueError(f"tile sizes: expected powers of two from 16 up, got {self}")
        if self.warps not in (1, 2, 4, 8, 16) or not 1 <= self.stages <= 8:
            raise ValueError(f"expected 1-16 warps (a power of two) and 1-8 stages, got {self}")
        if not self.capabilities or not set(self.capabilities) <= set(CAPABILITIES):
            raise ValueError(f"expected capabilities out of {CAPABILITIES}, got {self.capabilities}")
        for entry in ARCHITECTURES:
            if entry.capability in self.capabilities and self.staged_bytes > entry.shared_bytes:
                raise ValueError(
                    f"{self.staged_bytes} staged bytes exceed {entry.shared_bytes} on {entry.name}: {self}"
                )

    @property
    def staged_bytes(self) -> int:
        """The least shared memory that the pipeline of the inner loop takes; the compiler's own figure,
        which the check reads, is higher for gated layers."""
        element = 2 if self.precision == "half" else 4
        held = max(self.stages - 1, 1)
        if self.strategy == "whole":
            return self.width * self.chunk * element * held
        return (self.block_m + self.block_n) * self.block_k * element * held

    @property
    def room(self) -> int:
        """How many columns a program may keep on the chip at once: for one value that is read and one that is made."""
        return 2 * (self.program_width or self.width)

    @property
    def label(self) -> str:
        """`whole/16`: the strategy and how many rows a program takes."""
        name = "split" if self.split else self.strategy
        return f"{name}{'-tf32x3' * (self.precision == 'tf32x3')}/{self.block_m}"


def _whole(
    precision: Precision,
    width: int,
    chunk: int,
    block_m: int,
    *,
    warps: int,
    stages: int = 2,
    block_k: int = 0,
    capabilities: tuple[int, ...] = CAPABILITIES,
    program_width: int = 0,
) -> Tile:
    block = 64 if precision == "half" else 32
    return Tile(
        strategy="whole",
        precision=precision,
        block_m=block_m,
        block_n=block,
        block_k=block_k or block,
        warps=warps,
        stages=stages,
        width=width,
        chunk=chunk,
        capabilities=capabilities,
        program_width=program_width,
    )


TILES: tuple[Tile, ...] = (
    # 16 rows: the least latency.
    _whole("half", 32, 32, 16, warps=4, stages=3),
    _whole("half", 64, 64, 16, warps=4, stages=3),
    _whole("half", 128, 64, 16, warps=4, program_width=96),
    _whole("half", 256, 64, 16, warps=8, stages=3, capabilities=LARGE),
    _whole("half", 256, 64, 16, warps=8, stages=2, capabilities=SMALL),
    _whole("tf32", 32, 32, 16, warps=4),
    _whole("tf32", 64, 32, 16, warps=4),
    _whole("tf32", 128, 32, 16, warps=4),
    _whole("tf32", 256, 32, 16, warps=8, program_width=192),
    # Four warps spill here: without tensor cores every operand passes through registers.
    _whole("ieee", 32, 32, 16, warps=8),
    _whole("ieee", 64, 32, 16, warps=8),
    _whole("ieee", 128, 32, 16, warps=8),
    _whole("ieee", 256, 32, 16, warps=8, capabilities=(80, 86, 89, 100, 120)),
    _whole("ieee", 256, 32, 16, warps=8, block_k=16, capabilities=(90,)),  # spills with 32
    # More rows share each weight read: throughput. (256 wide in tf32, 128 in ieee spill at 32 rows.)
    _whole("half", 32, 32, 64, warps=8),
    _whole("half", 64, 64, 64, warps=8, capabilities=(80, 86, 89, 90, 100)),
    _whole("half", 64, 64, 64, warps=8, block_k=32, capabilities=(120,)),  # gates spill with 64
    # Where a warp's own registers hold the accumulators, 64 rows of 128 spill under some activations.
    _whole("half", 128, 64, 64, warps=8, capabilities=(90, 100)),
    _whole("half", 128, 64, 32, warps=8, capabilities=(80, 86, 89, 120)),
    _whole("half", 256, 64, 32, warps=8, stages=3, capabilities=LARGE),
    _whole("half", 256, 64, 32, warps=8, stages=2, capabilities=SMALL),
    _whole("tf32", 32, 32, 64, warps=8),
    _whole("tf32", 64, 32, 64, warps=8),
    _whole("tf32", 128, 32, 32, warps=8, capabilities=(80, 86, 89, 90, 100)),
    _whole("tf32", 128, 32, 32, warps=8, block_k=16, capabilities=(120,)),  # gates spill with 32
    _whole("ieee", 32, 32, 32, warps=8),
    _whole("ieee", 64, 32, 32, warps=8),
    # One launch per layer, any width. Few rows: narrow tiles, so that a layer of 512 columns still keeps 16
    # multiprocessors busy, and long ones, so that each has enough bytes in flight.
    Tile("layered", "half", block_m=16, block_n=32, block_k=128, warps=4, stages=4),
    Tile("layered", "half", block_m=128, block_n=64, block_k=64, warps=8, stages=3, capabilities=LARGE),
    Tile("layered", "half", block_m=128, block_n=64, block_k=64, warps=8, stages=2, capabilities=SMALL),
    Tile("layered", "tf32", block_m=16, block_n=32, block_k=64, warps=4, stages=4),
    Tile("layered", "tf32", block_m=64, block_n=64, block_k=32, warps=8, stages=2),
    Tile("layered", "ieee", block_m=16, block_n=32, block_k=64, warps=4, stages=4),
    Tile("layered", "ieee", block_m=64, block_n=64, block_k=16, warps=8, stages=2),
    # Float32 on tensor cores, in three products. (64 rows of 64 columns spill when gated.)
    _whole("tf32x3", 32, 32, 16, warps=4),
    _whole("tf32x3", 64, 32, 16, warps=4),
    _whole("tf32x3", 128, 32, 16, warps=4),
    _whole("tf32x3", 32, 32, 64, warps=8),
    Tile("layered", "tf32x3", block_m=16, block_n=32, block_k=32, warps=4, stages=3),
    # Parts of long sums in programs of their own, in batches of a block.
    Tile("layered", "half", block_m=16, block_n=32, block_k=128, warps=4, stages=4, split=True),
    Tile("layered", "tf32", block_m=16, block_n=32, block_k=64, warps=4, stages=4, split=True),
    Tile("layered", "ieee", block_m=16, block_n=32, block_k=64, warps=4, stages=4, split=True),
    Tile("layered", "tf32x3", block_m=16, block_n=32, block_k=32, warps=4, stages=3, split=True),
)


def select_tiles(
    architecture: Architecture,
    precision: Precision,
    fits: Callable[[Tile], bool],
    splits: Callable[[Tile], bool],
) -> list[Tile]:
    """The rows a model may use, smallest block_m first: of `whole` those of the narrowest width that it fits, then the
    layered ones. `splits`: whether a layer of it is split."""
    precisions = FLOAT32 if precision in FLOAT32 else (precision,)
    usable = [
        tile
        for tile in TILES
        if architecture.capability in tile.capabilities and tile.precision in precisions
    ]
    whole = [tile for tile in usable if tile.strategy == "whole"]
    width = next((tile.width for tile in sorted(whole, key=lambda tile: tile.width) if fits(tile)), -1)
    chosen = [tile for tile in usable if tile.strategy == "layered" or tile.width == width]
    chosen = [tile for tile in chosen if not tile.split or splits(tile)]
    return sorted(chosen, key=lambda tile: (tile.strategy == "layered", tile.block_m))
