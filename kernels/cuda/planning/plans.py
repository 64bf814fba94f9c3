# SPDX-License-Identifier: Apache-2.0
"""The launches of each strategy, as data: kernel, compile-time constants, pointer types, grid. `forward` makes a
forward pass of them. The ahead-of-time check reads them too: it checks the launches that run. Imports no triton."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from fused_mlp.kernels.cuda.planning.placement import SCRATCH, Place, Task, X, place
from fused_mlp.kernels.cuda.planning.stages import RowPass, Stage, stages_of
from fused_mlp.kernels.cuda.planning.tiles import FLOAT32, Precision, Tile
from fused_mlp.kernels.cuda.planning.whole_steps import norm_name, pad, plan_whole
from fused_mlp.kernels.fusion import Product, join
from fused_mlp.kernels.lookups import Lookups
from fused_mlp.models import Dtype, MlpSpec
from fused_mlp.models.program.formula import Formula, parse
from fused_mlp.models.program.spec import Gated, Norm
from fused_mlp.models.weights.quantization import Precision as Kept

KernelName = Literal["gather", "whole", "layer", "row", "part", "join"]
ELEMENT_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
ROW_BLOCK = 1024
# The most registers of a thread. Left alone (None), ptxas makes room for more programs per multiprocessor and may spill
# a value for that; given the hardware's 255 it loads further ahead, and may spill then. Which of the two spills depends
# on the program, so there is a second try. First 255 in `whole`, whose programs have a multiprocessor each.
WHOLE_REGISTERS = (255, None)
LAYERED_REGISTERS = (None, 255)
# Without tensor cores a GPU sums a product one input after the other, and the error of so long a chain grows with it:
# with 4096 inputs it is three times that of eager, whose GEMMs sum in parts. So do these kernels: parts of this many
# inputs, each summed in order and added up in order, whatever the batch. (Tensor cores round operands more than sums,
# except in tf32x3.)
SUM_PART = 512
# `split`: a batch of at most so many rows leaves most multiprocessors idle in a layer of so few blocks of columns, so
# each part of a sum gets a program of its own. The parts are added up in the same order as in one program.
SPLIT_ROWS = 16
SPLIT_COLUMN_BLOCKS = 64
DEPENDENT_CAPABILITY = 90  # from here on, a launch may begin while the one before it ends
MANY = 2**31 - 1
_IDENTITY = parse("x")


@dataclass(frozen=True)
class Epilogue:
    """The end of a product, or a whole pass over rows; the kernels ask for it while they are compiled. `out` columns,
    `padded` in the weights. z is combined with them, y is the result; their rows are *_row elements apart. `last`
    follows the norm of a product; a pass has its norm first."""

    out: int
    padded: int = 0
    z_at: int = 0
    z_row: int = 0
    z_element: str = "fp32"
    y_at: int = 0
    y_row: int = 0
    gate: Formula | None = None
    function: Formula = _IDENTITY
    combine: str = ""
    swapped: bool = False
    then: Formula = _IDENTITY
    norm: str = ""
    eps: float = 0.0
    weight: bool = False
    bias: bool = False
    last: Formula = _IDENTITY

    @property
    def gated(self) -> bool:
        return self.gate is not None


@dataclass(frozen=True)
class WholeSizes:
    """The sizes that all steps of `whole` share; its kernel asks for them while it is compiled."""

    inputs: int
    outputs: int
    chunk: int
    block_m: int
    block_k: int
    precision: str
    part: int


@dataclass(frozen=True)
class LaunchPlan:
    """One launch, for batches of `min_rows` to `max_rows`. `pointers` are the Triton element types of the tensors,
    in the order of the kernel's arguments. `dependent`: not the first, and waits itself for the one before it."""

    kernel: KernelName
    pointers: tuple[str, ...]
    constants: Mapping[str, object]
    block_m: int
    column_blocks: int
    warps: int
    stages: int
    registers: tuple[int | None, ...] = LAYERED_REGISTERS
    min_rows: int = 0
    max_rows: int = MANY
    dependent: bool = False

    @property
    def options(self) -> tuple[Mapping[str, int | None], ...]:
        """As Triton's compiler and its launcher call them; the second ones for a kernel that spills with the first."""
        return tuple(
            {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": most} for most in self.registers
        )

    def overlaps(self, capability: int) -> bool:
        return self.dependent and capability >= DEPENDENT_CAPABILITY

    def constants_for(self, capability: int) -> Mapping[str, object]:
        if not self.constants.get("OVERLAP") or capability >= DEPENDENT_CAPABILITY:
            return self.constants
        return {**self.constants, "OVERLAP": False}

    def grid(self, rows: int) -> int:
        """How many programs; none for a batch that another launch is for."""
        if not self.min_rows <= rows <= self.max_rows:
            return 0
        return -(-rows // self.block_m) * self.column_blocks


GATHER_FIELDS = 8  # of each part, as `gather_kernel` reads them


def gather_plan(spec: MlpSpec, lookups: Lookups) -> LaunchPlan:
    """The launch before all others of a program with ids."""
    widest = max(part.features for part in lookups.parts)
    block = min(ROW_BLOCK, max(32, 1 << (widest - 1).bit_length()))
    return LaunchPlan(
        kernel="gather",
        pointers=("fp32", ELEMENT_TYPES[spec.dtype], "i64", "fp32"),
        constants={
            "X_ROW": spec.in_features,
            "Y_ROW": lookups.rest.in_features,
            "PARTS": len(lookups.parts),
            "FIELDS": GATHER_FIELDS,
            "BLOCK": block,
        },
        block_m=1,
        column_blocks=len(lookups.parts),
        warps=min(4, block // 32),
        stages=2,
    )


def precision_of(spec: MlpSpec, tf32: bool) -> Precision:
    if spec.dtype != "float32":
        return "half"
    return "tf32" if tf32 else "ieee"


def dtype_on_gpu(spec: MlpSpec, precision: Kept, *, kept: bool) -> Dtype:
    """The dtype in which a GPU runs weights in fewer bits: bfloat16, which tensor cores multiply and which has the
    range of float32. `kept`: some matrices stay in float32, because fewer bits cost too much; a bfloat16 version must
    not lose them here either."""
    if spec.dtype != "float32" or precision == "float32" or (precision == "bfloat16" and kept):
        return spec.dtype
    return "bfloat16"


def whole_plan(spec: MlpSpec, tile: Tile) -> LaunchPlan:
    """The single launch of `whole`."""
    element = ELEMENT_TYPES[spec.dtype]
    return LaunchPlan(
        kernel="whole",
        pointers=("fp32", element, "fp32", "fp32"),
        constants={
            "STEPS": plan_whole(spec, tile).steps,
            "SIZES": WholeSizes(
                spec.in_features, spec.out_features, tile.chunk, tile.block_m, tile.block_k, *_sums(tile)
            ),
        },
        block_m=tile.block_m,
        column_blocks=1,
        warps=tile.warps,
        stages=tile.stages,
        registers=WHOLE_REGISTERS,
    )


@dataclass(frozen=True)
class LayeredLaunch:
    """A launch of `layered`: its plan, what it computes, and the buffers that it reads and writes (source, other,
    target; the source again where there is no other). `tail`: the row pass in a product's epilogue."""

    plan: LaunchPlan
    stage: Product | RowPass
    tail: RowPass | None
    buffers: tuple[int, int, int]


def layered_plans(spec: MlpSpec, tile: Tile) -> list[LaunchPlan]:
    return [launch.plan for launch in layered_launches(spec, tile)[0]]


def layered_launches(spec: MlpSpec, tile: Tile) -> tuple[list[LayeredLaunch], tuple[int, ...]]:
    """One launch per product and per row pass that no epilogue takes; and the rows of the buffers between them."""
    stages, tails = _with_tails(spec, tile)
    placement = place(spec, stages)
    element = ELEMENT_TYPES[spec.dtype]
    launches: list[LayeredLaunch] = []
    for task in placement.tasks:
        places = (task.source, task.other or task.source, task.target)
        x, z, y = (_pointer(each, element) for each in places)
        tail = tails.get(task.stage.name) if isinstance(task.stage, Product) else None
        if isinstance(task.stage, Product):
            width = spec.widths_by_name[task.stage.step.input]
            plan = _product_plan(task, tail, width, tile, (x, z, element, "fp32", y))
        else:
            width = spec.widths_by_name[task.stage.source]
            plan = _row_plan(task, width, element, (x, z, "fp32", y))
        launches.append(
            LayeredLaunch(plan, task.stage, tail, (places[0].buffer, places[1].buffer, places[2].buffer))
        )
    return launches, placement.scratch


def _with_tails(spec: MlpSpec, tile: Tile) -> tuple[tuple[Stage, ...], dict[str, RowPass]]:
    """The stages, with row passes over rows that a tile holds taken into the products before them; and those passes, by
    the name of the product, which is then that of the pass."""
    tails: dict[str, RowPass] = {}

    def grow(product: Stage, row: Stage) -> Product | None:
        if not isinstance(product, Product) or not isinstance(row, RowPass) or product.name in tails:
            return None
        if row.combined is not None or spec.widths_by_name[row.name] > tile.block_n:
            return None
        tails[row.name] = row
        return replace(product, name=row.name)

    return tuple(join(spec, stages_of(spec), lambda stage: stage, grow)), tails


def _product_plan(
    task: Task, tail: RowPass | None, width: int, tile: Tile, pointers: tuple[str, str, str, str, str]
) -> LaunchPlan:
    product = task.stage
    assert isinstance(product, Product)
    element = pointers[2]
    out = product.step.out_features
    n_padded, (precision, part) = pad(out, tile.block_n), _sums(tile)
    return LaunchPlan(
        kernel="layer",
        pointers=pointers,
        constants={
            "IN": width,
            "X_AT": task.source.column,
            "X_ROW": task.source.row,
            "W_ROW": pad(width, SUM_PART if tile.split and width > SUM_PART else tile.block_k),
            "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n,
            "BLOCK_K": tile.block_k,
            "PRECISION": precision,
            "PART": part,
            "OVERLAP": True,
            "END": replace(
                _epilogue(task, tail, out, element),
                padded=n_padded,
                gate=product.step.formula if isinstance(product.step, Gated) else None,
                last=_IDENTITY if tail is None else tail.function,
            ),
        },
        block_m=tile.block_m,
        column_blocks=n_padded // tile.block_n,
        warps=tile.warps,
        stages=tile.stages,
    )


def _row_plan(task: Task, width: int, element: str, pointers: tuple[str, ...]) -> LaunchPlan:
    row = task.stage
    assert isinstance(row, RowPass)
    block = min(ROW_BLOCK, max(32, 1 << (width - 1).bit_length()))
    return LaunchPlan(
        kernel="row",
        pointers=pointers,
        constants={
            "X_AT": task.source.column,
            "X_ROW": task.source.row,
            "X_ELEMENT": _rounding(task.source, element),
            "BLOCK": block,
            "OVERLAP": True,
            "END": _epilogue(task, row, width, element),
        },
        block_m=1,
        column_blocks=1,
        warps=min(4, block // 32),
        stages=2,
    )


def _pointer(place: Place, element: str) -> str:
    return "fp32" if place.buffer < SCRATCH else element


def _rounding(place: Place | None, element: str) -> str:
    """The input is in float32, whatever the model's dtype."""
    return element if place is not None and place.buffer == X else "fp32"


def _epilogue(task: Task, row: RowPass | None, out: int, element: str) -> Epilogue:
    """`row`: the pass that normalizes: the task's own, or the tail of its product."""
    combined = task.stage.combined
    normalized, scaled = (None, None) if row is None else (row.normalized, row.scaled)
    return Epilogue(
        out,
        z_at=0 if task.other is None else task.other.column,
        z_row=0 if task.other is None else task.other.row,
        z_element=_rounding(task.other, element),
        y_at=task.target.column,
        y_row=task.target.row,
        function=task.stage.function,
        combine="" if combined is None else combined.op,
        swapped=combined is not None and combined.swapped,
        then=task.stage.then,
        norm="" if normalized is None else norm_name(normalized),
        eps=normalized.eps if isinstance(normalized, Norm) else 0.0,
        weight=scaled is not None and scaled.weight,
        bias=scaled is not None and scaled.bias,
    )


def epilogue_of(plan: LaunchPlan) -> Epilogue:
    """The epilogue of a product or of a pass over rows."""
    end = plan.constants["END"]
    assert isinstance(end, Epilogue)
    return end


def _sums(tile: Tile) -> tuple[str, int]:
    """How products are multiplied, and in parts of how many inputs they are summed."""
    precision = "ieee" if tile.precision == "half" else tile.precision
    return precision, SUM_PART if tile.precision in FLOAT32 or tile.split else sys.maxsize
