# SPDX-License-Identifier: Apache-2.0
"""What nvcc makes of CUDA C++, executed: wmma, static and dynamic shared memory, loops over a runtime count, erff."""

from __future__ import annotations

import shutil
import struct
import subprocess
from math import erf
from pathlib import Path

import numpy as np
import pytest

from tests.support.ptx import Memory, run

SOURCE = """
#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;

// y = gelu(x w^T), 16 rows, 16 columns per block; k a multiple of 16.
extern "C" __global__ void linear_gelu(const half* x, const half* w, float* y, int k, int n) {
    __shared__ float tile[256];
    extern __shared__ half rows[];
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int i = threadIdx.x; i < 16 * k; i += blockDim.x) rows[i] = x[i];
    __syncthreads();
    for (int at = 0; at < k; at += 16) {
        wmma::load_matrix_sync(a, rows + at, k);
        wmma::load_matrix_sync(b, w + 16 * blockIdx.x * k + at, k);
        wmma::mma_sync(sum, a, b, sum);
    }
    wmma::store_matrix_sync(tile, sum, 16, wmma::mem_row_major);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) {
        float v = tile[i];
        y[i / 16 * n + 16 * blockIdx.x + i % 16] = 0.5f * v * (1.0f + erff(v * 0.70710678f));
    }
}
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_kernel_of_nvcc_gives_the_answer_of_numpy(tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").write_text(SOURCE)
    subprocess.run(["nvcc", "-arch=sm_80", "-ptx", "kernel.cu", "-o", "kernel.ptx"], cwd=tmp_path, check=True)
    random = np.random.default_rng(0)
    k, n = 80, 48
    x, w = (random.standard_normal((rows, k)).astype(np.float16) for rows in (16, n))
    y = np.full((16, n), np.nan, np.float32)
    memory = Memory()
    passed = struct.pack("<QQQii", memory.add(x), memory.add(w), memory.add(y), k, n)
    run(
        (tmp_path / "kernel.ptx").read_text(),
        "linear_gelu",
        (n // 16, 1, 1),
        (32, 1, 1),
        16 * k * 2,
        passed,
        memory,
    )
    exact = x.astype(float) @ w.astype(float).T
    np.testing.assert_allclose(
        y, exact * 0.5 * (1 + np.vectorize(erf)(exact * 0.5**0.5)), rtol=1e-4, atol=1e-4
    )
