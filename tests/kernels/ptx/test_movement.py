# SPDX-License-Identifier: Apache-2.0
"""Memory and the threads of a warp in the PTX interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.ptx.snippets import execute, store_registers, vector
from tests.support.ptx import BadAccess, Memory, Race, Stuck

LANE_ADDRESS = "mad.wide.u32 %d10, %r0, 4, %d0;\n"


def words(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint32)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("ld.global.b32 %r10, [%d10+4];", "outside of every allocation"),
        ("ld.global.b32 %r10, [%d10+-8];", "outside of every allocation"),
        ("st.global.b32 [%d10+128], %r0;", "outside of every allocation"),
        ("ld.global.v2.b32 {%r10, %r11}, [%d10];", "not aligned to 8 bytes"),
        ("mov.b32 %r10, smem;\nst.shared.b32 [%r10+64], %r0;", "outside of 0x40 bytes"),
        ("mov.b32 %r10, smem;\nld.shared.b32 %r11, [%r10+2];", "not aligned to 4 bytes"),
    ],
)
def test_access_out_of_bounds_or_misaligned_is_refused(body: str, message: str) -> None:
    with pytest.raises(BadAccess, match=message):
        execute(LANE_ADDRESS + body, words(32), shared=64)


def test_threads_that_are_masked_off_may_point_anywhere() -> None:
    data = words(8)
    execute(LANE_ADDRESS + "setp.lt.u32 %p1, %r0, 8;\n@%p1 st.global.b32 [%d10], %r0;", data)
    assert data.tolist() == list(range(8))


def test_memory_of_the_host_is_used_where_it_is() -> None:
    array = np.zeros(64, np.float32)
    memory = Memory()
    start = -(-array.ctypes.data // 16) * 16
    assert memory.add_host(start, 64) == start
    memory.store(np.array([start + 4], np.uint64), np.array([[0x3F800000]], np.uint32), 4, "test")
    assert array.sum() == 1
    memory.remove(start)
    with pytest.raises(BadAccess):
        memory.load(np.array([start], np.uint64), 4, "test")


COPY = """
    mov.b32 %r10, smem;
    shl.b32 %r11, %r0, 2;
    add.s32 %r12, %r10, %r11;
    mad.wide.u32 %d10, %r0, 4, %d0;
    cp.async.ca.shared.global [ %r12 + 0 ], [ %d10 + 0 ], 0x4, {size};
    cp.async.commit_group;
    cp.async.ca.shared.global [ %r12 + 128 ], [ %d10 + 0 ], 0x4;
    cp.async.commit_group;
    {wait}
    ld.shared.b32 %r13, [%r12];
    ld.shared.b32 %r14, [%r12+128];
"""


@pytest.mark.parametrize(
    ("wait", "first", "second"),
    [("cp.async.wait_group 0;", 1, 1), ("cp.async.wait_group 1;", 1, 0), ("", 0, 0)],
)
def test_copy_reads_as_nan_until_its_group_is_waited_for(wait: str, first: int, second: int) -> None:
    result = np.zeros((32, 2), np.uint32)
    execute(COPY.format(size=4, wait=wait) + store_registers("r", 13, 1, 2), words(32), result, shared=256)
    for column, landed in enumerate((first, second)):
        assert result[:, column].tolist() == (list(range(32)) if landed else [0xFFFFFFFF] * 32)


def test_copy_of_no_bytes_writes_zeros_and_reads_nothing() -> None:
    result = np.zeros((32, 2), np.uint32)
    body = COPY.format(size="%r20", wait="cp.async.wait_group 0;")
    body = "setp.lt.u32 %p1, %r0, 4;\nselp.b32 %r20, 4, 0, %p1;\n" + body.replace(
        "cp.async.ca.shared.global [ %r12 + 128 ], [ %d10 + 0 ], 0x4;", ""
    )
    execute(body + store_registers("r", 13, 1, 2), words(4), result, shared=256)
    assert result[:, 0].tolist() == [0, 1, 2, 3] + [0] * 28


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_gives_each_thread_two_elements_of_each_matrix(transposed: bool) -> None:
    halves = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    result = np.zeros((32, 4), np.uint32)
    body = f"""
    mov.b32 %r10, smem;
    mad.lo.s32 %r11, %r0, 16, %r10;
    mad.wide.u32 %d10, %r0, 16, %d0;
    ld.global.v4.b32 {vector("r", 12, 4)}, [%d10];
    st.shared.v4.b32 [%r11], {vector("r", 12, 4)};
    ldmatrix.sync.aligned.m8n8.x4{".trans" if transposed else ""}.shared.b16 {vector("r", 20, 4)}, [%r11];
    """
    execute(body + store_registers("r", 20, 1, 4), halves, result, shared=512)
    for lane in range(32):
        for index in range(4):
            matrix = halves[index].T if transposed else halves[index]
            low, high = matrix[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2].tolist()
            assert result[lane, index] == low | high << 16


def test_stmatrix_is_the_inverse_of_ldmatrix() -> None:
    data, result = words(64).reshape(32, 2), np.zeros((32, 2), np.uint32)
    body = f"""
    mov.b32 %r10, smem;
    and.b32 %r11, %r0, 15;
    mad.lo.s32 %r11, %r11, 16, %r10;
    mad.wide.u32 %d10, %r0, 8, %d0;
    ld.global.v2.b32 {vector("r", 12, 2)}, [%d10];
    stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r11], {vector("r", 12, 2)};
    ldmatrix.sync.aligned.m8n8.x2.shared.b16 {vector("r", 20, 2)}, [%r11];
    """
    execute(body + store_registers("r", 20, 1, 2), data, result, shared=256)
    assert (result == data).all()


@pytest.mark.parametrize(
    ("shuffle", "source"),
    [
        ("shfl.sync.bfly.b32 %r10, %r0, 5, 31, -1;", lambda lane: lane ^ 5),
        ("shfl.sync.idx.b32 %r10, %r0, 3, 31, -1;", lambda lane: 3),
        ("shfl.sync.down.b32 %r10, %r0, 30, 31, -1;", lambda lane: lane + 30 if lane < 2 else lane),
    ],
)
def test_shuffles_stay_in_their_warp(shuffle: str, source: object) -> None:
    result = np.zeros(64, np.uint32)
    execute(f"{shuffle}\n" + LANE_ADDRESS + "st.global.b32 [%d10], %r10;", result, threads=64)
    assert result.tolist() == [lane // 32 * 32 + source(lane % 32) for lane in range(64)]  # type: ignore[operator]


EXCHANGE = """
    mov.b32 %r10, smem;
    shl.b32 %r11, %r0, 2;
    add.s32 %r12, %r10, %r11;
    xor.b32 %r13, %r11, {distance};
    add.s32 %r13, %r10, %r13;
    st.shared.b32 [%r12], %r0;
    {barrier}
    ld.shared.b32 %r14, [%r13];
"""


def test_exchange_between_warps_needs_a_barrier() -> None:
    result = np.zeros((64, 1), np.uint32)
    good = EXCHANGE.format(distance=128, barrier="bar.sync 0;")
    execute(good + store_registers("r", 14, 0, 1), result, threads=64, shared=256)
    assert result[:, 0].tolist() == [lane ^ 32 for lane in range(64)]
    with pytest.raises(Race, match="another warp wrote"):
        execute(EXCHANGE.format(distance=128, barrier=""), threads=64, shared=256)
    with pytest.raises(Race, match="another warp read"):
        execute(good + "st.shared.b32 [%r12], %r1;", threads=64, shared=256)
    execute(EXCHANGE.format(distance=4, barrier=""), threads=64, shared=256)  # within a warp


def test_exchange_through_global_memory_needs_a_barrier() -> None:
    body = (
        LANE_ADDRESS
        + "st.global.b32 [%d10], %r0;\n{}\nxor.b32 %r10, %r0, 32;\n"
        + LANE_ADDRESS.replace("%r0", "%r10")
    )
    execute(body.format("bar.sync 0;") + "ld.global.b32 %r11, [%d10];", words(64), threads=64)
    with pytest.raises(Race, match="global memory"):
        execute(body.format("") + "ld.global.b32 %r11, [%d10];", words(64), threads=64)


def test_barrier_that_some_threads_never_reach_is_refused() -> None:
    with pytest.raises(Stuck, match="32 threads of the block are elsewhere"):
        execute("setp.lt.u32 %p1, %r0, 32;\n@%p1 bra END;\nbar.sync 0;\nEND:", threads=64)


def test_blocks_have_shared_memory_of_their_own() -> None:
    result = np.zeros((3, 32), np.uint32)
    body = """
    mov.b32 %r10, smem;
    shl.b32 %r11, %r0, 2;
    add.s32 %r11, %r10, %r11;
    st.shared.b32 [%r11], %r1;
    ld.shared.b32 %r12, [%r11];
    mad.lo.s32 %r13, %r1, 32, %r0;
    mad.wide.u32 %d10, %r13, 4, %d0;
    st.global.b32 [%d10], %r12;"""
    execute(body, result, blocks=3, shared=128)
    assert (result == np.arange(3)[:, None]).all()


def test_shared_memory_starts_as_nan() -> None:
    result = np.zeros((32, 1), np.float32)
    execute(
        "mov.b32 %r10, smem;\nld.shared.b32 %r11, [%r10];" + store_registers("r", 11, 0, 1), result, shared=16
    )
    assert np.isnan(result).all()


def test_redux_takes_the_largest_of_its_lanes_and_elect_the_first() -> None:
    result = np.zeros((64, 2), np.uint32)
    body = """
    cvt.rn.f32.s32 %r10, %r0;
    redux.sync.max.f32 %r11, %r10, -1;
    elect.sync %r13|%p1, -1;
    selp.b32 %r12, 1, 0, %p1;
    """
    execute(body + store_registers("r", 11, 0, 2), result, threads=64)
    assert result[:, 0].view(np.float32).tolist() == [31.0] * 32 + [63.0] * 32
    assert np.flatnonzero(result[:, 1]).tolist() == [0, 32]
