"""What each strategy launches, as data: kernel, compile-time constants, pointer types, grid. Both the
launcher and the ahead-of-time check read it, so that what is checked is what runs. Imports no triton."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fused_mlp.kernels.cuda.tiles import Precision, Tile
from fused_mlp.models import MlpSpec

KernelName = Literal["whole", "layer", "softmax"]
ELEMENT_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
SOFTMAX_BLOCK = 1024
# The hardware's. Asked for in `whole`, whose few programs have a multiprocessor each: left alone, ptxas spills a
# value here and there to make room for more programs than there are.
MAX_REGISTERS = 255


@dataclass(frozen=True)
class LaunchPlan:
    """One launch. `pointers` are the Triton element types of x, w, b, y (the softmax has y only)."""

    kernel: KernelName
    pointers: tuple[str, ...]
    constants: Mapping[str, object]
    block_m: int
    column_blocks: int
    warps: int
    stages: int
    registers: int | None = None  # most per thread; None leaves it to ptxas

    @property
    def options(self) -> dict[str, int | None]:
        """As Triton's compiler and its launcher call them."""
        return {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}

    def grid(self, rows: int) -> int:
        return -(-rows // self.block_m) * self.column_blocks


def precision_of(spec: MlpSpec, tf32: bool) -> Precision:
    if spec.dtype != "float32":
        return "half"
    return "tf32" if tf32 else "ieee"


def hidden_width(spec: MlpSpec) -> int:
    """The widest hidden layer; 0 when there is none."""
    return max((layer.out_features for layer in spec.layers[:-1]), default=0)


def pad(size: int, block: int) -> int:
    return -(-size // block) * block


def whole_plan(spec: MlpSpec, tile: Tile) -> LaunchPlan:
    """The single launch of `whole`; needs at least two layers (one layer is one launch anyway)."""
    element = ELEMENT_TYPES[spec.dtype]
    return LaunchPlan(
        kernel="whole",
        pointers=("fp32", element, "fp32", "fp32"),
        constants={
            "IN": spec.in_features,
            "OUT": spec.out_features,
            "HIDDEN": tuple(layer.out_features for layer in spec.layers[:-1]),
            "WIDTH": tile.width,
            "CHUNK": tile.chunk,
            "BLOCK_M": tile.block_m,
            "BLOCK_K": tile.block_k,
            "BLOCK_N": last_block(spec, tile),
            "ACTIVATIONS": tuple(layer.activation for layer in spec.layers),
            "SLOPES": tuple(layer.negative_slope for layer in spec.layers),
            "GATED": tuple(layer.gated for layer in spec.layers),
            "OUTPUT": spec.output_activation,
            "OUTPUT_SLOPE": spec.output_negative_slope,
            "PRECISION": _dot_precision(tile),
        },
        block_m=tile.block_m,
        column_blocks=1,
        warps=tile.warps,
        stages=tile.stages,
        registers=MAX_REGISTERS,
    )


def last_block(spec: MlpSpec, tile: Tile) -> int:
    """A handful of outputs (a classifier's) would waste most of a full tile."""
    return min(tile.block_n, 16) if spec.out_features <= 16 else tile.block_n


def layered_plans(spec: MlpSpec, tile: Tile) -> list[LaunchPlan]:
    """One launch per layer, plus one for a softmax over rows wider than a tile."""
    element = ELEMENT_TYPES[spec.dtype]
    softmax = spec.output_activation in ("softmax", "log_softmax")
    separate = softmax and spec.out_features > tile.block_n
    plans: list[LaunchPlan] = []
    for index, layer in enumerate(spec.layers):
        first, last = index == 0, index == len(spec.layers) - 1
        width = spec.widths[index]
        n_padded = pad(layer.out_features, tile.block_n)
        plans.append(
            LaunchPlan(
                kernel="layer",
                pointers=("fp32" if first else element, element, "fp32", "fp32" if last else element),
                constants={
                    "IN": width,
                    "X_ROW": width if first else scratch_row(width),
                    "W_ROW": pad(width, tile.block_k),
                    "N_PADDED": n_padded,
                    "OUT": layer.out_features,
                    "Y_ROW": layer.out_features if last else scratch_row(layer.out_features),
                    "BLOCK_M": tile.block_m,
                    "BLOCK_N": tile.block_n,
                    "BLOCK_K": tile.block_k,
                    "ACTIVATION": layer.activation,
                    "SLOPE": layer.negative_slope,
                    "GATED": layer.gated,
                    "OUTPUT": spec.output_activation if last and not separate else "identity",
                    "OUTPUT_SLOPE": spec.output_negative_slope,
                    "PRECISION": _dot_precision(tile),
                },
                block_m=tile.block_m,
                column_blocks=n_padded // tile.block_n,
                warps=tile.warps,
                stages=tile.stages,
            )
        )
    if separate:
        plans.append(
            LaunchPlan(
                kernel="softmax",
                pointers=("fp32",),
                constants={
                    "OUT": spec.out_features,
                    "BLOCK": SOFTMAX_BLOCK,
                    "LOG": spec.output_activation == "log_softmax",
                },
                block_m=1,
                column_blocks=1,
                warps=4,
                stages=2,
            )
        )
    return plans


def scratch_row(width: int) -> int:
    """Rows of the buffers between layers start 16 elements apart, so that loads stay vector loads at odd
    widths."""
    return pad(width, 16)


def eager_launches(spec: MlpSpec) -> int:
    """What eager PyTorch launches: a GEMM per projection (bias included), and one kernel for each activation,
    gate product and output activation. Casts of the input are not held against it."""
    count = 0
    for layer in spec.layers:
        activation = layer.activation != "identity"
        count += (2 + activation + 1) if layer.gated else 1 + activation
    return count + (spec.output_activation != "identity")


def _dot_precision(tile: Tile) -> str:
    return "tf32" if tile.precision == "tf32" else "ieee"
