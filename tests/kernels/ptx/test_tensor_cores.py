# SPDX-License-Identifier: Apache-2.0
"""Products of the tensor cores in the PTX interpreter, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.ptx.snippets import execute, store_registers, vector, warp_registers
from tests.support.ptx import Race, Stuck

RANDOM = np.random.default_rng(1)


def rounded(matrix: np.ndarray, name: str) -> np.ndarray:
    """Numbers that the type holds exactly, as float32."""
    kept = {"f16": 13, "bf16": 16, "tf32": 13}[name]
    return ((matrix.astype(np.float32).view(np.uint32) >> kept) << kept).view(np.float32)


def encoded(matrix: np.ndarray, name: str) -> np.ndarray:
    """The elements of a row as words."""
    if name == "tf32":
        return matrix.view(np.uint32)
    if name == "f16":
        return matrix.astype(np.float16).view(np.uint32)
    return (np.ascontiguousarray(matrix).view(np.uint32) >> 16).astype(np.uint16).view(np.uint32)


def operands(m: int, n: int, k: int, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a (m, k), b (n, k), c (m, n)."""
    a, b = (rounded(RANDOM.standard_normal((rows, k)), name) for rows in (m, n))
    return a, b, RANDOM.standard_normal((m, n)).astype(np.float32)


SHAPES = [("f16", 16), ("bf16", 16), ("tf32", 8)]


@pytest.mark.parametrize(("name", "k"), SHAPES)
def test_mma_sync_multiplies_fragments_as_the_manual_lays_them_out(name: str, k: int) -> None:
    a, b, c = operands(16, 8, k, name)
    words_a, words_b = encoded(a, name), encoded(b, name)
    in_a, in_b, in_c = (np.zeros((32, count), np.uint32) for count in (4, 2, 4))
    for lane in range(32):
        group, thread = divmod(lane, 4)
        for index in range(4):
            in_a[lane, index] = words_a[group + 8 * (index % 2), thread + 4 * (index // 2)]
            in_c[lane, index] = c.view(np.uint32)[group + 8 * (index // 2), 2 * thread + index % 2]
        for index in range(2):
            in_b[lane, index] = words_b[group, thread + 4 * index]
    result = np.zeros((32, 4), np.float32)
    opcode = f"mma.sync.aligned.m16n8k{k}.row.col.f32.{name}.{name}.f32"
    body = "\n".join(
        [
            warp_registers("r", 10, 0, 4),
            warp_registers("r", 20, 1, 2),
            warp_registers("r", 30, 2, 4),
            f"{opcode} {vector('r', 40, 4)}, {vector('r', 10, 4)}, {vector('r', 20, 2)}, {vector('r', 30, 4)};",
            store_registers("r", 40, 3, 4),
        ]
    )
    execute(body, in_a, in_b, in_c, result)
    expected = a.astype(float) @ b.astype(float).T + c
    for lane in range(32):
        for index in range(4):
            row, column = lane // 4 + 8 * (index // 2), lane % 4 * 2 + index % 2
            assert result[lane, index] == np.float32(expected[row, column])


def swizzled(matrix: np.ndarray) -> np.ndarray:
    """(rows, 128 bytes) uint32 as it lies in shared memory with a swizzle of 128 bytes."""
    chunks = matrix.reshape(len(matrix), 8, 4)
    return np.stack([row[np.arange(8) ^ (index % 8)] for index, row in enumerate(chunks)]).reshape(
        len(matrix), 32
    )


TO_SHARED = """
    mov.b32 %r10, smem;
    mov.b32 %r11, %r0;
COPY:
    mad.wide.u32 %d10, %r11, 16, %d0;
    ld.global.v4.b32 {%r12, %r13, %r14, %r15}, [%d10];
    mad.lo.s32 %r16, %r11, 16, %r10;
    st.shared.v4.b32 [%r16], {%r12, %r13, %r14, %r15};
    add.s32 %r11, %r11, 128;
    setp.lt.u32 %p1, %r11, CHUNKS;
    @%p1 bra COPY;
    FENCE
    bar.sync 0;
"""
DESCRIPTOR = 1 << 62 | 64 << 32  # 128 bytes of swizzle, 1024 bytes between eight rows


def to_shared(rows: int, fence: str = "fence.proxy.async.shared::cta;") -> str:
    return TO_SHARED.replace("CHUNKS", str(8 * rows)).replace("FENCE", fence)


def warp_group(
    name: str, k: int, wait: str, fence: str = "fence.proxy.async.shared::cta;"
) -> tuple[np.ndarray, np.ndarray]:
    """A product of 64 x 16 over two steps of k, and what numpy makes of it."""
    depth = 128 // (4 if name == "tf32" else 2)
    a, b, _ = operands(64, 16, depth, name)
    data = np.concatenate([swizzled(encoded(each, name)) for each in (a, b)])
    result = np.zeros((128, 8), np.float32)
    trailing = "" if name == "tf32" else ", 0, 0"
    body = (
        to_shared(80, fence)
        + f"""
    mov.b64 %d20, {DESCRIPTOR};
    mov.b64 %d21, {DESCRIPTOR + 64 * 128 // 16};
    mov.b64 %d22, {DESCRIPTOR + 2};
    mov.b64 %d23, {DESCRIPTOR + 64 * 128 // 16 + 2};
    mov.pred %p2, 0;
    mov.pred %p3, -1;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n16k{k}.f32.{name}.{name} {vector("r", 40, 8)}, %d20, %d21, %p2, 1, 1{trailing};
    wgmma.mma_async.sync.aligned.m64n16k{k}.f32.{name}.{name} {vector("r", 40, 8)}, %d22, %d23, %p3, 1, 1{trailing};
    wgmma.commit_group.sync.aligned;
    {wait}
    """
    )
    execute(body + store_registers("r", 40, 1, 8), data, result, threads=128, shared=80 * 128)
    total = a[:, : 2 * k].astype(float) @ b[:, : 2 * k].astype(float).T
    warp = result.reshape(4, 8, 4, 2, 2, 2)  # warp, group, thread, eight columns, row, pair
    return warp.transpose(0, 4, 1, 3, 2, 5).reshape(64, 16), total


@pytest.mark.parametrize(("name", "k"), SHAPES)
def test_wgmma_multiplies_swizzled_matrices(name: str, k: int) -> None:
    found, expected = warp_group(name, k, "wgmma.wait_group.sync.aligned 0;")
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_wgmma_reads_as_nan_until_it_is_waited_for() -> None:
    found, _ = warp_group("f16", 16, "wgmma.wait_group.sync.aligned 1;")
    assert np.isnan(found).all()


def test_wgmma_needs_a_fence_after_writes() -> None:
    with pytest.raises(Race, match=r"fence\.proxy\.async"):
        warp_group("f16", 16, "wgmma.wait_group.sync.aligned 0;", fence="")


def test_what_wgmma_reads_must_stay_until_it_is_waited_for() -> None:
    with pytest.raises(Race, match="overwritten"):
        warp_group("f16", 16, "bar.sync 0;\nst.shared.b32 [%r10], 0;\nwgmma.wait_group.sync.aligned 0;")


WAIT = """
    {
    .reg .pred complete;
    waitLoop:
    mbarrier.try_wait.parity.shared::cta.b64 complete, [%r30], 0;
    @!complete bra.uni waitLoop;
    }
"""


def tensor_memory(
    name: str,
    height: int = 64,
    wait: str = WAIT,
    loaded: str = "tcgen05.wait::ld.sync.aligned;",
    commit: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """A product of `height` x 16 in tensor memory over two steps of k, issued by one thread."""
    depth = 128 // (4 if name == "tf32" else 2)
    k = 8 if name == "tf32" else 16
    a, b, _ = operands(height, 16, depth, name)
    data = np.concatenate([swizzled(encoded(each, name)) for each in (a, b)])
    result = np.zeros((128, 16), np.float32)
    code = {"f16": 0, "bf16": 1, "tf32": 2}[name]
    shape = 1 << 4 | code << 7 | code << 10 | 16 // 8 << 17 | height // 16 << 24
    kind = "tf32" if name == "tf32" else "f16"
    first, second = (2 << 61 | 1 << 46 | 64 << 32) + 0, (2 << 61 | 1 << 46 | 64 << 32) + height * 8
    size = (height + 16) * 128
    body = (
        to_shared(height + 16)
        + f"""
    setp.lt.u32 %p5, %r0, 32;
    @%p5 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10 + {size}], 32;
    add.s32 %r30, %r10, {size + 8};
    setp.eq.b32 %p6, %r0, 0;
    @%p6 mbarrier.init.shared::cta.b64 [%r30], 1;
    bar.sync 0;
    ld.shared.b32 %r31, [%r10+{size}];
    mov.b64 %d20, {first};
    mov.b64 %d21, {second};
    mov.b64 %d22, {first + 2};
    mov.b64 %d23, {second + 2};
    mov.b32 %r32, {shape};
    mov.pred %p2, 0;
    mov.pred %p3, -1;
    @%p6 tcgen05.mma.cta_group::1.kind::{kind} [ %r31 + 0 ], %d20, %d21, %r32, %p2;
    @%p6 tcgen05.mma.cta_group::1.kind::{kind} [ %r31 + 0 ], %d22, %d23, %r32, %p3;
    {"@%p6 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r30];" if commit else ""}
    {wait}
    and.b32 %r33, %r0, 96;
    shl.b32 %r33, %r33, 16;
    add.s32 %r33, %r33, %r31;
    tcgen05.ld.sync.aligned.32x32b.x16.b32 {vector("r", 40, 16)}, [%r33 + 0];
    {loaded}
    """
    )
    execute(body + store_registers("r", 40, 1, 16), data, result, threads=128, shared=size + 16)
    total = a[:, : 2 * k].astype(float) @ b[:, : 2 * k].astype(float).T
    return (result if height == 128 else result.reshape(4, 32, 16)[:, :16].reshape(64, 16)), total


@pytest.mark.parametrize("height", [64, 128])
@pytest.mark.parametrize("name", ["f16", "bf16", "tf32"])
def test_tcgen05_multiplies_into_tensor_memory(name: str, height: int) -> None:
    found, expected = tensor_memory(name, height)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("left_out", ["wait", "loaded"])
def test_tensor_memory_reads_as_nan_until_it_is_waited_for(left_out: str) -> None:
    found, _ = tensor_memory("f16", **{left_out: ""})
    assert np.isnan(found).all()


def test_waiting_for_a_product_that_was_not_committed_is_refused() -> None:
    with pytest.raises(Stuck, match="never completed"):
        tensor_memory("f16", commit=False)


def test_16x32bx2_puts_the_second_half_of_a_warp_some_columns_further() -> None:
    result = np.zeros((128, 4), np.uint32)
    body = f"""
    mov.b32 %r10, smem;
    setp.lt.u32 %p5, %r0, 32;
    @%p5 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10], 32;
    bar.sync 0;
    ld.shared.b32 %r31, [%r10];
    and.b32 %r33, %r0, 96;
    shl.b32 %r33, %r33, 16;
    add.s32 %r33, %r33, %r31;
    tcgen05.st.sync.aligned.16x32bx2.x2.b32 [%r33 + 0], 2, {{%r0, %r0}};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x4.b32 {vector("r", 40, 4)}, [%r33 + 0];
    tcgen05.wait::ld.sync.aligned;
    """
    execute(body + store_registers("r", 40, 0, 4), result, threads=128, shared=16)
    for thread in range(16):
        assert result[32 + thread].tolist() == [32 + thread] * 2 + [48 + thread] * 2
