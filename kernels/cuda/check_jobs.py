"""What the ahead-of-time check compiles: each row of the tile table on each architecture that can select
it, in a light and in its heaviest use. Data only; imports no triton."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fused_mlp.kernels.cuda.architectures import ARCHITECTURES, Architecture
from fused_mlp.kernels.cuda.check_models import Tour, gated_layers, gated_whole, plain_layers, plain_whole
from fused_mlp.kernels.cuda.plans import LaunchPlan, layered_plans, whole_plan
from fused_mlp.kernels.cuda.tiles import TILES, Tile
from fused_mlp.models import Dtype

LIGHT, HEAVY = "plain", "gated"
LAST = " last"  # `layered` compiles its last layer apart: it writes float32, and holds the softmax
# What `--quick` compiles on each architecture: every kind of kernel, every way to multiply.
QUICK = {
    ("whole/16", 128, "bfloat16", HEAVY),
    ("whole/64", 64, "float16", LIGHT),
    ("whole/16", 64, "ieee", HEAVY),
    ("layered/128", 0, "bfloat16", HEAVY),
    ("layered/16", 0, "float16", LIGHT + LAST),
    ("layered/16", 0, "tf32", HEAVY + LAST),
    ("softmax", 0, "fp32", "rows of 1000"),
}
FLOAT_TYPES: dict[str, tuple[Dtype, ...]] = {
    "half": ("float16", "bfloat16"),
    "tf32": ("float32",),
    "ieee": ("float32",),
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
        return self.plan.kernel != "softmax" and self.precision != "ieee"

    @property
    def weight(self) -> int:
        """What it costs to compile, roughly: more for wide tiles, float32 without tensor cores, gates."""
        return (self.width + self.plan.block_m) * (1 + (self.use == HEAVY)) * (1 + (self.precision == "ieee"))

    @property
    def activations(self) -> list[str]:
        """`gated gelu`, `relu`, ... `softmax`: what this binary computes, layer by layer."""
        constants = self.plan.constants
        if self.plan.kernel == "softmax":
            return ["log_softmax" if constants["LOG"] else "softmax"]
        names, gates = constants.get("ACTIVATIONS"), constants.get("GATED")
        if not (isinstance(names, tuple) and isinstance(gates, tuple)):
            names, gates = (constants["ACTIVATION"],), (gates,)
        layers = [f"gated {name}" if gated else str(name) for name, gated in zip(names, gates, strict=True)]
        return [*layers, str(constants["OUTPUT"])]

    def as_dict(self) -> dict[str, object]:
        return {
            "arch": f"sm_{self.capability}",
            "tile": self.label,
            "width": self.width,
            "precision": self.precision,
            "use": self.use,
            "activations": self.activations,
            "warps": self.plan.warps,
            "stages": self.plan.stages,
        }


def jobs(quick: bool = False) -> list[Job]:
    """Everything; or, quick, one row of each kind, in fp16, bf16 and both kinds of float32."""
    # Each architecture starts at another activation, so that together they compile every layer kernel there is.
    found = [job for index, entry in enumerate(ARCHITECTURES) for job in _on(entry, Tour(3 * index))]
    return [job for job in found if not quick or (job.label, job.width, job.precision, job.use) in QUICK]


def _on(architecture: Architecture, tour: Tour) -> Iterator[Job]:
    for tile in TILES:
        if architecture.capability not in tile.capabilities:
            continue
        for dtype in FLOAT_TYPES[tile.precision]:
            precision = tile.precision if tile.precision != "half" else dtype
            # fp16 and bf16 differ in one instruction's name: each is compiled in one of the two uses.
            uses = {"float32": (LIGHT, HEAVY), "float16": (LIGHT,), "bfloat16": (HEAVY,)}[dtype]
            for use in uses:
                for name, plan in _plans(tile, dtype, use, tour):
                    yield Job(architecture.capability, tile.label, tile.width, precision, name, plan)
    any_layered = next(tile for tile in TILES if tile.strategy == "layered")
    softmax = layered_plans(gated_layers("bfloat16", tour, outputs=1000), any_layered)[-1]
    yield Job(architecture.capability, "softmax", 0, "fp32", "rows of 1000", softmax)


def _plans(tile: Tile, dtype: Dtype, use: str, tour: Tour) -> Iterator[tuple[str, LaunchPlan]]:
    if tile.strategy == "whole":
        model = plain_whole if use == LIGHT else gated_whole
        yield use, whole_plan(model(tile.width, dtype, tour), tile)
        return
    # As many outputs as a tile holds, less one: then the softmax is in the layer's own epilogue.
    fitting = tile.block_n - 1
    spec = plain_layers(dtype, tour) if use == LIGHT else gated_layers(dtype, tour, outputs=fitting)
    hidden, last = layered_plans(spec, tile)
    yield use, hidden
    yield use + LAST, last
