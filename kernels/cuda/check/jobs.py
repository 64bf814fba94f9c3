# SPDX-License-Identifier: Apache-2.0
"""The jobs of the ahead-of-time check: each row of the tile table on each architecture that can select
it, in a light and in its heaviest use. Data only; imports no triton."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fused_mlp.kernels.cuda.check.models import (
    SOFTMAXES,
    Tour,
    gated_layers,
    gated_whole,
    long_sum,
    normed_whole,
    plain_layers,
    plain_whole,
    ranker,
    residual_layers,
    residual_whole,
)
from fused_mlp.kernels.cuda.planning.architectures import ARCHITECTURES, Architecture
from fused_mlp.kernels.cuda.planning.forward import plan_forward
from fused_mlp.kernels.cuda.planning.plans import Epilogue, LaunchPlan, layered_plans, whole_plan
from fused_mlp.kernels.cuda.planning.tiles import TILES, Tile
from fused_mlp.kernels.cuda.planning.whole_steps import fits, plan_whole
from fused_mlp.models import Dtype, MlpSpec

LIGHT, HEAVY, PROGRAM = "plain", "gated", "program"
LAST = " last"  # `layered` compiles its last layer apart: it writes float32, and holds the softmax
# `--quick` compiles these on each architecture: every kind of kernel and every way to multiply, in a form that compiles
# fast.
QUICK = {
    ("whole/16", 64, "bfloat16", HEAVY),
    *(("whole/16", 32, "float16", use) for use in (LIGHT, PROGRAM)),
    ("layered/16", 0, "float16", LIGHT + LAST),
    ("layered/16", 0, "tf32", HEAVY + LAST),
    ("layered/16", 0, "ieee", LIGHT + LAST),
    *(("split-tf32x3/16", 0, "tf32x3", f"{HEAVY} {kernel}") for kernel in ("part", "join")),
    *(("row", 0, precision, f"{PROGRAM} 0") for precision in ("float16", "ieee")),
}
FLOAT_TYPES: dict[str, tuple[Dtype, ...]] = {
    "half": ("float16", "bfloat16"),
    "tf32": ("float32",),
    "ieee": ("float32",),
    "tf32x3": ("float32",),
}


@dataclass(frozen=True)
class Job:
    """One binary to compile."""

    capability: int
    label: str
    width: int
    precision: str
    use: str
    plan: LaunchPlan

    def __hash__(self) -> int:
        return hash((self.capability, self.label, self.width, self.precision, self.use, self.plan.kernel))

    @property
    def wants_tensor_cores(self) -> bool:
        return self.plan.kernel not in ("gather", "row", "join") and self.precision != "ieee"

    @property
    def weight(self) -> int:
        """A rough cost of compiling it: more for wide tiles, float32 without tensor cores, gates."""
        return (self.width + self.plan.block_m) * (1 + (self.use != LIGHT)) * (1 + (self.precision == "ieee"))

    @property
    def uses(self) -> list[str]:
        """`gated gelu`, `relu`, `norm layer`, `softmax`, `add`, ...: what this binary computes. After the last product
        of `whole`, functions are in a loop of their own: `last relu`."""
        constants = self.plan.constants
        if self.plan.kernel == "whole":
            steps = constants["STEPS"]
            assert isinstance(steps, tuple)
            found = []
            for step in steps:
                last = "last " if step.kind == "stream" else ""
                found += _uses(step.gate, [f"{last}{step.function}", str(step.then)], step.norm, step.combine)
            return found
        end = constants.get("END")
        if not isinstance(end, Epilogue):
            return []
        return _uses(end.gate, [str(end.function), str(end.then), str(end.last)], end.norm, end.combine)

    def as_dict(self) -> dict[str, object]:
        return {
            "arch": f"sm_{self.capability}",
            "tile": self.label,
            "width": self.width,
            "precision": self.precision,
            "use": self.use,
            "uses": self.uses,
            "warps": self.plan.warps,
            "stages": self.plan.stages,
        }


def _uses(gate: object, functions: list[str], norm: str, combine: str) -> list[str]:
    found = [f"gated {gate}"] if gate is not None else []
    found += [function for function in functions if function not in ("x", "last x")]
    if norm:
        found.append(norm if norm in SOFTMAXES else f"norm {norm}")
    return [*found, combine] if combine else found


def jobs(quick: bool = False) -> list[Job]:
    """Everything; or, quick, one row of each kind, in fp16, bf16 and both kinds of float32."""
    # Each architecture starts at another function, so that together they compile every layer kernel there is.
    found = [job for index, entry in enumerate(ARCHITECTURES) for job in _on(entry, index)]
    return [job for job in found if not quick or (job.label, job.width, job.precision, job.use) in QUICK]


def _on(architecture: Architecture, number: int) -> Iterator[Job]:
    tour = Tour(5 * number)
    for index, tile in enumerate(tile for tile in TILES if architecture.capability in tile.capabilities):
        for dtype in FLOAT_TYPES[tile.precision]:
            precision = tile.precision if tile.precision != "half" else dtype
            # fp16 and bf16 differ in one instruction's name: each is compiled in one of the two uses.
            uses = {"float32": (LIGHT, HEAVY), "float16": (LIGHT,), "bfloat16": (HEAVY,)}[dtype]
            if tile.strategy == "whole" and LIGHT in uses and (index + number) % 2:
                # Programs compile as chains do, only longer: on every second architecture, instead of the light one.
                uses = (PROGRAM, *uses[1:])
            if tile.precision == "tf32x3" or tile.split:  # as others compile, except for the products
                uses = uses[:1] if PROGRAM in uses else uses[-1:]
            for use in uses:
                for name, plan in _plans(tile, dtype, use, tour):
                    yield Job(architecture.capability, tile.label, tile.width, precision, name, plan)
    yield from _layered_programs(architecture, number, tour)


def _plans(tile: Tile, dtype: Dtype, use: str, tour: Tour) -> Iterator[tuple[str, LaunchPlan]]:
    if tile.strategy == "whole":
        yield use, whole_plan(_whole_model(tile, dtype, use, tour), tile)
        return
    if tile.split:
        for launch in plan_forward(long_sum(dtype, tour, outputs=tile.block_n - 1), tile).launches:
            yield f"{use} {launch.plan.kernel}", launch.plan
        return
    # As many outputs as a tile holds, less one: then the softmax is in the layer's own epilogue.
    fitting = tile.block_n - 1
    spec = plain_layers(dtype, tour) if use == LIGHT else gated_layers(dtype, tour, outputs=fitting)
    hidden, last = layered_plans(spec, tile)
    yield use, hidden
    yield use + LAST, last


def _whole_model(tile: Tile, dtype: Dtype, use: str, tour: Tour) -> MlpSpec:
    if use == LIGHT:
        return plain_whole(tile.width, dtype, tour)
    if use == HEAVY:
        return gated_whole(tile.width, dtype, tour)
    # Small tiles have no room for a residual block.
    residual = residual_whole(tile.room, dtype, tour)
    if fits(plan_whole(residual, tile), tile):
        return residual
    return normed_whole(tile.room // 2, dtype, tour)


def _layered_programs(architecture: Architecture, number: int, tour: Tour) -> Iterator[Job]:
    """The kernels of a program that a chain has not: in half precision on one architecture, in float32 on the next."""
    dtype: Dtype = "float16" if number % 2 == 0 else "float32"
    precision = "half" if number % 2 == 0 else "ieee"
    tile = next(tile for tile in TILES if tile.strategy == "layered" and tile.precision == precision)
    lookups = plan_forward(ranker(dtype), tile).launches[0].plan
    yield Job(
        architecture.capability, "gather", 0, dtype if precision == "half" else precision, PROGRAM, lookups
    )
    for index, plan in enumerate(layered_plans(residual_layers(dtype, tour, narrow=tile.block_n - 1), tile)):
        label = tile.label if plan.kernel == "layer" else "row"
        name = dtype if precision == "half" else precision
        yield Job(architecture.capability, label, 0, name, f"{PROGRAM} {index}", plan)
