"""What the ahead-of-time check compiles: each row of the tile table on each architecture that can select
it, in a light and in its heaviest use. Data only; imports no triton."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernels.cuda.architectures import ARCHITECTURES, Architecture
from kernels.cuda.plans import LaunchPlan, layered_plans, whole_plan
from kernels.cuda.tiles import TILES, Tile
from models import Dtype, LayerSpec, MlpSpec

# Heaviest: every layer gated (two accumulators), exact GELU, and a softmax over more columns than one tile
# holds. Its odd widths leave masks and scalar loads in place.
LIGHT, HEAVY = "plain", "gated"
QUICK = {
    ("whole/16", 128, "bfloat16"),
    ("layered/128", 0, "bfloat16"),
    ("layered/16", 0, "tf32"),
    ("whole/16", 64, "ieee"),
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

    def as_dict(self) -> dict[str, object]:
        return {
            "arch": f"sm_{self.capability}",
            "tile": self.label,
            "width": self.width,
            "precision": self.precision,
            "use": self.use,
            "warps": self.plan.warps,
            "stages": self.plan.stages,
        }


def jobs(quick: bool = False) -> list[Job]:
    """Everything; or, quick, the heaviest use of the widest row of each kind, in bf16 and both kinds of
    float32."""
    return [job for architecture in ARCHITECTURES for job in _on(architecture) if not quick or _is_quick(job)]


def _on(architecture: Architecture) -> Iterator[Job]:
    for tile in TILES:
        if architecture.capability not in tile.capabilities:
            continue
        for dtype in FLOAT_TYPES[tile.precision]:
            precision = tile.precision if tile.precision != "half" else dtype
            # fp16 and bf16 differ in one instruction's name: each is compiled in one of the two uses.
            uses = {"float32": (LIGHT, HEAVY), "float16": (LIGHT,), "bfloat16": (HEAVY,)}[dtype]
            for use in uses:
                plan = _plan(tile, dtype, use)
                yield Job(architecture.capability, tile.label, tile.width, precision, use, plan)
    softmax = layered_plans(_layered_model("float32", HEAVY, outputs=1000), _first_layered())[-1]
    yield Job(architecture.capability, "softmax", 0, "fp32", "rows of 1000", softmax)


def _plan(tile: Tile, dtype: Dtype, use: str) -> LaunchPlan:
    if tile.strategy == "layered":
        return layered_plans(_layered_model(dtype, use, outputs=200), tile)[0]
    return whole_plan(_whole_model(tile.width, dtype, use), tile)


def _whole_model(width: int, dtype: Dtype, use: str) -> MlpSpec:
    """First, between, last; twice between for narrow tiles. (Once more is the same code again, and in the
    wide ones a third of the time to compile.)"""
    between = 1 if width > 64 else 2
    if use == LIGHT:
        hidden = LayerSpec(out_features=width, activation="relu")
        layers = (hidden,) * (1 + between) + (LayerSpec(out_features=10),)
        return MlpSpec(in_features=784, layers=layers, dtype=dtype)
    gated = LayerSpec(out_features=width - 1, activation="gelu", gated=True)
    last = LayerSpec(out_features=199, activation="gelu", gated=True)
    layers = (gated,) * (1 + between) + (last,)
    return MlpSpec(in_features=123, layers=layers, output_activation="log_softmax", dtype=dtype)


def _layered_model(dtype: Dtype, use: str, outputs: int) -> MlpSpec:
    heavy = use == HEAVY
    layer = LayerSpec(out_features=1024 - heavy, activation="gelu" if heavy else "relu", gated=heavy)
    return MlpSpec(
        in_features=1024 - heavy,
        layers=(layer, LayerSpec(out_features=outputs)),
        output_activation="softmax",
        dtype=dtype,
    )


def _first_layered() -> Tile:
    return next(tile for tile in TILES if tile.strategy == "layered" and tile.precision == "ieee")


def _is_quick(job: Job) -> bool:
    return job.use == HEAVY and (job.label, job.width, job.precision) in QUICK


def _model(
    widths: tuple[int, ...], activation: str, output: str, dtype: Dtype, gated: bool = False
) -> MlpSpec:
    layers = [{"out_features": width, "activation": activation, "gated": gated} for width in widths[1:-1]]
    layers.append({"out_features": widths[-1]})
    return MlpSpec.model_validate(
        {
            "in_features": widths[0],
            "layers": layers,
            "output_activation": output,
            "dtype": dtype,
        }
    )


# Models people serve, for the table of launches.
EXAMPLES = (
    _model((64, 128, 128, 10), "relu", "softmax", "float32"),
    _model((784, 512, 256, 10), "relu", "softmax", "float32"),
    _model((32, 64, 64, 64, 64, 64, 64, 64, 3), "silu", "identity", "float16"),
    _model((768, 3072, 768), "gelu", "identity", "bfloat16"),
    _model((768, 3072, 768), "gelu", "identity", "bfloat16", gated=True),
    _model((4096, 11008, 4096), "silu", "identity", "bfloat16", gated=True),
)
