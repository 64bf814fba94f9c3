# SPDX-License-Identifier: Apache-2.0
"""Numbers in the PTX interpreter, against numpy and against the errors that the PTX manual documents."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.kernels.ptx.snippets import compute, execute
from tests.support.ptx import UnknownInstruction

RANDOM = np.random.default_rng(0)
F32 = (RANDOM.standard_normal(64) * 10.0 ** RANDOM.integers(-6, 6, 64)).astype(np.float32)
F32B = (RANDOM.standard_normal(64) * 10.0 ** RANDOM.integers(-6, 6, 64)).astype(np.float32)
INTS = RANDOM.integers(-(2**31), 2**31, 64).astype(np.int32)
SMALL = RANDOM.integers(0, 40, 64).astype(np.int32)
HALVES = RANDOM.standard_normal(64).astype(np.float16)
BF16_VALUES = np.arange(64, dtype=np.float32)  # less one, exact too
BF16 = (BF16_VALUES.view(np.uint32) >> 16).astype(np.uint16)
ONE = np.full(64, 0x3F80, np.uint16)
NAN = np.array([np.nan, 1.0] * 32, np.float32)


def bits(array: np.ndarray) -> list[int]:
    return array.view(f"u{array.itemsize}").tolist()


@pytest.mark.parametrize(
    ("opcode", "operands", "expected"),
    [
        ("add.f32", (F32, F32B), F32 + F32B),
        ("sub.f32", (F32, F32B), F32 - F32B),
        ("mul.f32", (F32, F32B), F32 * F32B),
        ("fma.rn.f32", (F32, F32B, F32), (F32.astype(float) * F32B + F32).astype(np.float32)),
        ("add.rn.f32.f16", (HALVES, F32), HALVES.astype(np.float32) + F32),
        ("sub.rn.f32.bf16", (BF16, F32), BF16_VALUES - F32),
        ("sub.bf16", (BF16, ONE), ((BF16_VALUES - 1).view(np.uint32) >> 16).astype(np.uint16)),
        ("abs.f32", (F32,), np.abs(F32)),
        ("neg.f32", (F32,), -F32),
        ("prmt.b32", (INTS, SMALL, "0x7632U"), (INTS >> 16 & 0xFFFF) | (SMALL >> 16 << 16)),
        ("prmt.b32", (INTS, INTS, "0x0123"), INTS.byteswap()),
        ("prmt.b32", (INTS, INTS, "0xBBBB"), INTS >> 31),
        ("copysign.f32", (F32, F32B), np.copysign(F32B, F32)),
        ("max.f32", (F32, NAN), np.fmax(F32, NAN)),
        ("max.NaN.f32", (F32, NAN), np.maximum(F32, NAN)),
        ("min.f32", (F32, F32B), np.minimum(F32, F32B)),
        ("max.f32", (F32, F32B, "0f3F800000"), np.maximum(np.maximum(F32, F32B), np.float32(1))),
        ("add.s32", (INTS, INTS[::-1].copy()), INTS + INTS[::-1]),
        ("mul.lo.s32", (INTS, SMALL), INTS * SMALL),
        ("mul.wide.s32", (INTS, SMALL), INTS.astype(np.int64) * SMALL),
        ("mad.lo.s32", (INTS, SMALL, SMALL), INTS * SMALL + SMALL),
        ("div.s32", (INTS, "7"), np.trunc(INTS / 7).astype(np.int32)),
        (
            "shl.b32",
            (INTS, SMALL),
            np.array(
                [(i << s) % 2**32 for i, s in zip(INTS.tolist(), SMALL.tolist(), strict=True)], np.uint32
            ),
        ),
        (
            "shr.s32",
            (INTS, SMALL),
            np.array([i >> s for i, s in zip(INTS.tolist(), SMALL.tolist(), strict=True)], np.int32),
        ),
        (
            "shr.u32",
            (INTS, SMALL),
            np.array([i % 2**32 >> s for i, s in zip(INTS.tolist(), SMALL.tolist(), strict=True)], np.uint32),
        ),
        ("bfe.u32", (INTS, "4", "3"), INTS.view(np.uint32) >> 4 & 7),
        ("bfe.s32", (INTS, "3", "1"), -(INTS >> 3 & 1)),
        ("and.b32", (INTS, SMALL), INTS & SMALL),
        ("xor.b32", (INTS, SMALL), INTS ^ SMALL),
        ("shf.l.wrap.b32", (INTS, INTS, "8"), (INTS << 8) | (INTS >> 24 & 255)),
        ("cvt.rn.f32.s32", (INTS,), INTS.astype(np.float32)),
        ("cvt.rni.ftz.s32.f32", (F32,), np.rint(F32).astype(np.int32)),
        ("cvt.rmi.ftz.f32.f32", (F32,), np.floor(F32)),
        (
            "cvt.rn.f16.f32",
            (HALVES.astype(np.float32) * np.float32(1.1),),
            (HALVES.astype(np.float32) * np.float32(1.1)).astype(np.float16),
        ),
        ("cvt.f32.f16", (HALVES,), HALVES.astype(np.float32)),
        ("sqrt.rn.f32", (np.abs(F32),), np.sqrt(np.abs(F32))),
    ],
)
def test_result_is_that_of_the_manual(
    opcode: str, operands: tuple[np.ndarray | str, ...], expected: np.ndarray
) -> None:
    assert bits(compute(opcode, operands, expected.dtype.type)) == bits(expected)


@pytest.mark.parametrize("name", ["add", "mul", "sub", "fma.rn"])
def test_f32x2_computes_both_halves_on_their_own(name: str) -> None:
    pairs = [RANDOM.standard_normal(64).astype(np.float32) for _ in range(3)][: 3 if name == "fma.rn" else 2]
    found = compute(f"{name}.f32x2", [pair.view(np.uint64) for pair in pairs], np.uint64).view(np.float32)
    one = [part.astype(float) for part in pairs]
    expected = {
        "add": lambda: one[0] + one[1],
        "mul": lambda: one[0] * one[1],
        "sub": lambda: one[0] - one[1],
    }
    exact = expected.get(name, lambda: one[0] * one[1] + one[2])()
    assert bits(found) == bits(exact.astype(np.float32))


def test_bfloat16_rounds_to_nearest_even_and_keeps_nan() -> None:
    tie_down, tie_up, above = 0x3F808000, 0x3F818000, 0x3F808001
    values = np.array([tie_down, tie_up, above, 0x7FC00001] * 8, np.uint32).view(np.float32)
    assert compute("cvt.rn.bf16.f32", (values,), np.uint16).tolist()[:4] == [0x3F80, 0x3F82, 0x3F81, 0x7FFF]


def test_first_source_of_a_packed_conversion_is_the_upper_half() -> None:
    one, two = np.full(32, 1.0, np.float32), np.full(32, 2.0, np.float32)
    assert compute("cvt.rn.f16x2.f32", (one, two), np.uint32)[0] == 0x3C00_4000
    assert compute("cvt.rn.bf16x2.f32", (one, two), np.uint32)[0] == 0x3F80_4000


@pytest.mark.parametrize(
    ("opcode", "function", "limit"),
    [
        ("ex2.approx.f32", np.exp2, 2.0**-22),
        ("lg2.approx.f32", np.log2, 2.0**-22),
        ("rcp.approx.ftz.f32", lambda x: 1 / x, 2.0**-23),
        ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x), 2.0**-22.9),
        ("tanh.approx.f32", np.tanh, 2.0**-11),
    ],
)
def test_approximations_use_most_of_the_documented_error_and_no_more(
    opcode: str, function: Callable[[np.ndarray], np.ndarray], limit: float
) -> None:
    x = np.linspace(3.1, 9.7, 1024).astype(np.float32)
    exact = function(x.astype(float))
    error = np.abs(compute(opcode, (x,), np.float32) / exact - 1)
    rounding = 2.0**-24
    assert error.max() <= limit + rounding
    assert error.max() >= 0.75 * limit


def test_full_division_is_within_two_units_and_exact_where_it_can_be() -> None:
    a, b = np.linspace(1, 2, 1024).astype(np.float32), np.linspace(3, 7, 1024).astype(np.float32)
    exact = a.astype(float) / b
    units = np.abs(compute("div.full.f32", (a, b), np.float32) - exact) / np.spacing(exact.astype(np.float32))
    assert 1.5 < units.max() <= 2.5
    assert bits(compute("div.full.f32", (a, np.ones_like(a)), np.float32)) == bits(a)


def test_ftz_flushes_subnormals_and_plain_arithmetic_keeps_them() -> None:
    x, one = np.full(32, 1e-40, np.float32), np.ones(32, np.float32)
    assert (compute("mul.rn.ftz.f32", (x, one), np.float32) == 0).all()
    assert (compute("mul.f32", (x, one), np.float32) == x).all()


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [("lt", [0, 0]), ("ltu", [1, 0]), ("neu", [1, 0]), ("ne", [0, 0]), ("eq", [0, 1])],
)
def test_comparisons_with_nan_are_false_unless_unordered(comparison: str, expected: list[int]) -> None:
    result = np.zeros(32, np.uint32)
    body = f"""
    mad.wide.u32 %d10, %r0, 4, %d0;
    ld.global.b32 %r10, [%d10];
    setp.{comparison}.f32 %p1, %r10, 0f3F800000;
    selp.b32 %r11, 1, 0, %p1;
    mad.wide.u32 %d11, %r0, 4, %d1;
    st.global.b32 [%d11], %r11;"""
    execute(body, NAN[:32].copy(), result)
    assert result[:2].tolist() == expected


def test_predicated_instructions_leave_other_threads_alone() -> None:
    result = np.zeros(32, np.uint32)
    execute(
        """
    mov.b32 %r10, 7;
    setp.lt.u32 %p1, %r0, 5;
    @%p1 mov.b32 %r10, 8;
    @!%p1 add.s32 %r10, %r10, %r0;
    mad.wide.u32 %d10, %r0, 4, %d0;
    st.global.b32 [%d10], %r10;""",
        result,
    )
    assert result.tolist() == [8] * 5 + [7 + lane for lane in range(5, 32)]


def test_threads_that_part_meet_again_whatever_the_layout() -> None:
    """The slow side lies behind the end of the loop; all threads must be together at the barrier."""
    result = np.zeros(64, np.uint32)
    execute(
        """
    mov.b32 %r10, 0;
    mov.b32 %r11, 0;
LOOP:
    and.b32 %r12, %r0, 3;
    setp.eq.b32 %p1, %r12, %r11;
    @%p1 bra SLOW;
JOIN:
    bar.sync 0;
    add.s32 %r11, %r11, 1;
    setp.lt.u32 %p2, %r11, 4;
    @%p2 bra LOOP;
    mad.wide.u32 %d10, %r0, 4, %d0;
    st.global.b32 [%d10], %r10;
    ret;
SLOW:
    add.s32 %r10, %r10, %r0;
    bra.uni JOIN;""",
        result,
        threads=64,
    )
    assert result.tolist() == list(range(64))


def test_unknown_instructions_are_refused_with_their_line() -> None:
    with pytest.raises(UnknownInstruction, match=r"line \d+: popc\.b32 %r10, %r0"):
        execute("popc.b32 %r10, %r0;")


def test_line_numbers_of_a_debugger_are_skipped() -> None:
    result = np.zeros(32, np.uint32)
    execute(
        "mad.wide.u32 %d10, %r0, 4, %d0;\n.loc 1 64 36\nmov.b32 %r10, 3;\n.loc 1 2 3\nst.global.b32 [%d10], %r10;",
        result,
    )
    assert (result == 3).all()


def test_carry_of_a_long_multiplication_goes_into_its_upper_half() -> None:
    a = RANDOM.integers(0, 2**32, 32).astype(np.uint32)
    result = np.zeros(32, np.uint64)
    execute(
        """
    mad.wide.u32 %d10, %r0, 4, %d0;
    ld.global.b32 %r10, [%d10];
    mad.lo.cc.u32 %r11, %r10, %r10, %r10;
    madc.hi.u32 %r12, %r10, %r10, 0;
    mov.b64 %d11, {%r11, %r12};
    mad.wide.u32 %d12, %r0, 8, %d1;
    st.global.b64 [%d12], %d11;""",
        a,
        result,
    )
    assert result.tolist() == [value * value + value for value in a.tolist()]
