# SPDX-License-Identifier: Apache-2.0
"""The lookups of a program: makes a dense row of floats of every record. One program per row and part of it."""

import triton
import triton.language as tl


@triton.jit
def gather_kernel(
    x_ptr,
    t_ptr,
    p_ptr,
    y_ptr,
    X_ROW: tl.constexpr,
    Y_ROW: tl.constexpr,
    PARTS: tl.constexpr,
    FIELDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """x: records, whose ids are the bits of 32-bit integers. t: all tables, end to end. p: FIELDS numbers for each
    part, in the order in which they are read here. Ids of a bag are added up in their order, whatever the batch."""
    row = (tl.program_id(0) // PARTS).to(tl.int64)
    part = p_ptr + (tl.program_id(0) % PARTS) * FIELDS
    kind = tl.load(part)
    word = tl.load(part + 1)
    count = tl.load(part + 2)
    features = tl.load(part + 3)
    column = tl.load(part + 4)
    padding = tl.load(part + 5)
    factors = tl.load(part + 6)
    table = tl.load(part + 7)
    x_row = x_ptr + row * X_ROW
    y_row = y_ptr + row * Y_ROW + column
    lane = tl.arange(0, BLOCK)
    for start in range(0, features, BLOCK):
        at = start + lane
        inside = at < features
        if kind == 0:
            value = tl.load(x_row + word + at, mask=inside, other=0.0)
        else:
            value = tl.zeros((BLOCK,), tl.float32)
            most = tl.full((BLOCK,), float("-inf"), tl.float32)
            counted = 0
            for number in range(0, count):
                one = tl.load(x_row + word + number).to(tl.int32, bitcast=True).to(tl.int64)
                there = (one != -1) & (one != padding)
                place = t_ptr + table + tl.where(there, one, 0) * features + at
                found = tl.load(place, mask=inside & there, other=0.0).to(tl.float32)
                if factors >= 0:
                    found = found * tl.load(x_row + factors + number)
                value += tl.where(there, found, 0.0)
                most = tl.where(there, tl.maximum(most, found), most)
                counted += there.to(tl.int32)
            if kind == 2:
                value = value / tl.maximum(counted, 1).to(tl.float32)
            elif kind == 3:
                value = tl.where(counted > 0, most, 0.0)
        tl.store(y_row + at, value, mask=inside)
