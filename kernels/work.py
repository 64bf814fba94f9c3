# SPDX-License-Identifier: Apache-2.0
"""The least work of a program, whatever runs it: arithmetic and bytes, step by step and in all. For rooflines and for
choosing a strategy; knows nothing of kernels. All numbers are per row, except those of weights. Weights in fewer bits
are counted as they are kept."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from fused_mlp.models import MlpSpec
from fused_mlp.models.program.spec import Step
from fused_mlp.models.program.steps import Bag, Embedding, Weighted
from fused_mlp.models.weights.quantization import Int8Matrix, Precision, Reduced, ReducedMatrix

BYTES_PER_FLOAT = 4  # kernels compute in float32, whatever the model is stored in
_NONE: Reduced = MappingProxyType({})


@dataclass(frozen=True)
class StepWork:
    """The work of one step."""

    name: str
    op: str
    product_flops: int  # of matrix products, a multiplication and an addition for each weight
    other_flops: int
    weight_bytes: int  # of tensors that no step before it has
    int8_flops: int  # of product_flops, those of int8 matrices
    precision: Precision | None  # of its matrix; None if it has none

    @property
    def flops(self) -> int:
        return self.product_flops + self.other_flops


@dataclass(frozen=True)
class Work:
    """The work of a program whose values stay where they are made: only weights, input and outputs are moved."""

    steps: tuple[StepWork, ...]
    input_bytes: int
    output_bytes: int

    @cached_property
    def product_flops(self) -> int:
        return sum(step.product_flops for step in self.steps)

    @cached_property
    def flops(self) -> int:
        return sum(step.flops for step in self.steps)

    @cached_property
    def int8_flops(self) -> int:
        return sum(step.int8_flops for step in self.steps)

    @cached_property
    def weight_bytes(self) -> int:
        return sum(step.weight_bytes for step in self.steps)

    def bytes_moved(self, rows: int) -> int:
        return self.weight_bytes + rows * (self.input_bytes + self.output_bytes)


def work_of(spec: MlpSpec, reduced: Reduced = _NONE) -> Work:
    """`reduced`: the matrices that are kept in fewer bits, by name."""
    seen: set[str] = set()
    steps = []
    for step in spec.steps:
        steps.append(_work_of(spec, step, reduced, counted=step.prefix in seen))
        seen.add(step.prefix)
    return Work(tuple(steps), BYTES_PER_FLOAT * spec.in_features, BYTES_PER_FLOAT * spec.out_features)


def _work_of(spec: MlpSpec, step: Step, reduced: Reduced, counted: bool) -> StepWork:
    widths = spec.source_widths(step)
    width = spec.widths_by_name[step.name]
    named = {f"{step.prefix}.{name}": shape for name, shape in step.shapes(widths).items()}
    shapes = named.values()
    products = {
        name: shape for name, shape in named.items() if isinstance(step, Weighted) and len(shape) == 2
    }
    narrow = {name: reduced[name] for name in products if name in reduced}
    weight_bytes = sum(map(_kept_bytes, narrow.values())) + BYTES_PER_FLOAT * sum(
        math.prod(shape) for name, shape in named.items() if name not in narrow
    )
    if isinstance(step, (Embedding, Bag)):  # some rows of a table are read, not the whole of it
        weight_bytes = 0
    return StepWork(
        name=step.name,
        op=step.op,
        product_flops=_product_flops(products.values()),
        other_flops=width * (step.flops_per_feature + sum(len(shape) == 1 for shape in shapes)),
        weight_bytes=0 if counted else weight_bytes,
        int8_flops=_product_flops(
            matrix.shape for matrix in narrow.values() if isinstance(matrix, Int8Matrix)
        ),
        precision=next(map(_precision, narrow.values()), "float32") if products else None,
    )


def _product_flops(shapes: Iterable[tuple[int, ...]]) -> int:
    return 2 * sum(map(math.prod, shapes))


def _precision(matrix: ReducedMatrix) -> Precision:
    return "int8" if isinstance(matrix, Int8Matrix) else "bfloat16"


def _kept_bytes(matrix: ReducedMatrix) -> int:
    """With the scales of int8."""
    if isinstance(matrix, Int8Matrix):
        return matrix.values.nbytes + matrix.scales.nbytes
    return matrix.nbytes
