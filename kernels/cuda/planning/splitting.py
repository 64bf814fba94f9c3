# SPDX-License-Identifier: Apache-2.0
"""`split`: a product with a long sum and few columns, for the smallest batches, in two launches: each part of the sum
by programs of its own, then the parts added up in order, with the epilogue. The order is that of the one launch which
larger batches get, so a row's bits are the same in both. Data only."""

from __future__ import annotations

from dataclasses import replace

from fused_mlp.kernels.cuda.planning.plans import (
    SPLIT_COLUMN_BLOCKS,
    SPLIT_ROWS,
    SUM_PART,
    LaunchPlan,
    epilogue_of,
)

_OF_JOIN = ("BLOCK_M", "BLOCK_N", "OVERLAP", "END")


def is_split(width: int, column_blocks: int) -> bool:
    return width > SUM_PART and column_blocks <= SPLIT_COLUMN_BLOCKS


def split(plan: LaunchPlan) -> tuple[LaunchPlan, LaunchPlan, LaunchPlan]:
    """Splits a product of `layered`: (the launch for larger batches, the parts, their sum)."""
    x, z, weights, vectors, y = plan.pointers
    constants, parts, end = dict(plan.constants), count_parts(plan), epilogue_of(plan)
    part = replace(
        plan,
        kernel="part",
        pointers=(x, weights, "fp32"),
        constants={name: value for name, value in constants.items() if name != "END"}
        | {"N_PADDED": end.padded, "GATED": end.gated, "PARTS": parts},
        column_blocks=plan.column_blocks * parts,
        max_rows=SPLIT_ROWS,
    )
    join = replace(
        plan,
        kernel="join",
        pointers=("fp32", z, vectors, y),
        constants={name: constants[name] for name in _OF_JOIN} | {"PARTS": parts},
        max_rows=SPLIT_ROWS,
    )
    return replace(plan, min_rows=SPLIT_ROWS + 1), part, join


def count_parts(plan: LaunchPlan) -> int:
    width = plan.constants["IN"]
    assert isinstance(width, int)
    return -(-width // SUM_PART)


def sums_of_row(plan: LaunchPlan) -> int:
    """Elements of a row of the sums between the two launches, in float32."""
    end = epilogue_of(plan)
    return count_parts(plan) * end.padded * (1 + end.gated)
