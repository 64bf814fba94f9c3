// SPDX-License-Identifier: Apache-2.0
// linear - GELU - linear in one launch, by hand: y = W2 gelu(W1 x + b1) + b2, in float16 with float32 sums.
//
// To read and to change. A block owns 16 rows and never writes the hidden layer to memory: it computes 64
// hidden columns at a time on the tensor cores (wmma), adds the bias, applies GELU, keeps the 16 x 64 values
// in shared memory, and multiplies them with the matching columns of W2 into sums that stay in registers.
// A fused MLP saves exactly that round trip of the hidden layer, and one launch.
//
//   x  (rows, in)         float32      rows are converted to float16 as they are loaded
//   w1 (hidden, in)       float16      zero-padded to multiples of 64 and 16 by the host (example/program.py)
//   w2 (out, hidden)      float16      zero-padded to multiples of OUT_TILE and 64
//   b1, b2                float32      zero-padded alike
//   y  (rows, out)        float32
//
// Each of the four warps owns 16 of the 64 hidden columns, then OUT_TILE / 4 of the output columns. Sums run
// over K in one fixed order, so that a row's result does not depend on its batch. Outputs beyond OUT_TILE are
// made by further blocks (blockIdx.y), which compute the hidden layer again: this kernel is for narrow
// outputs.
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

constexpr int ROWS = 16;      // of a block: one wmma tile
constexpr int HIDDEN = 64;    // hidden columns at a time: one wmma tile for each warp
constexpr int OUT_TILE = 64;  // output columns of a block
constexpr int WARPS = 4;
constexpr int K = 16;  // of one wmma
constexpr int PAD =
    8;  // halves at the end of shared rows, against bank conflicts; keeps rows a multiple of 16 bytes

__device__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    fused_mlp(const float* __restrict__ x, const half* __restrict__ w1, const float* __restrict__ b1,
              const half* __restrict__ w2, const float* __restrict__ b2, float* __restrict__ y, int rows,
              int in, int in_padded, int hidden, int hidden_padded, int out) {
  __shared__ __align__(32) half inputs[ROWS][K + PAD];
  __shared__ __align__(32) float sums[ROWS][HIDDEN + 4];
  __shared__ __align__(32) half activated[ROWS][HIDDEN + PAD];

  const int warp = threadIdx.x / 32;
  const int first_row = blockIdx.x * ROWS;
  const int first_out = blockIdx.y * OUT_TILE;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> result;
  wmma::fill_fragment(result, 0.0f);

  for (int h = 0; h < hidden_padded; h += HIDDEN) {
    // 1. This warp's 16 of the 64 hidden columns, summed over the inputs.
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> partial;
    wmma::fill_fragment(partial, 0.0f);
    for (int k = 0; k < in_padded; k += K) {
      for (int i = threadIdx.x; i < ROWS * K; i += WARPS * 32) {
        const int row = first_row + i / K, column = k + i % K;
        const bool inside = row < rows && column < in;
        inputs[i / K][i % K] = __float2half(inside ? x[static_cast<long>(row) * in + column] : 0.0f);
      }
      __syncthreads();
      wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
      wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b;
      wmma::load_matrix_sync(a, &inputs[0][0], K + PAD);
      wmma::load_matrix_sync(b, w1 + static_cast<long>(h + 16 * warp) * in_padded + k, in_padded);
      wmma::mma_sync(partial, a, b, partial);
      __syncthreads();  // before the next inputs overwrite these
    }
    // 2. Bias and GELU, through shared memory: which thread holds which element of a fragment is not
    // specified. Columns of padding become zero: zero weights are not enough, since an infinity in x times
    // zero is NaN.
    wmma::store_matrix_sync(&sums[0][16 * warp], partial, HIDDEN + 4, wmma::mem_row_major);
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * HIDDEN; i += WARPS * 32) {
      const int column = i % HIDDEN;
      const float value = gelu(sums[i / HIDDEN][column] + b1[h + column]);
      activated[i / HIDDEN][column] = __float2half(h + column < hidden ? value : 0.0f);
    }
    __syncthreads();
    // 3. What these 64 hidden columns add to this warp's 16 outputs.
    for (int k = 0; k < HIDDEN; k += K) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
      wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b;
      wmma::load_matrix_sync(a, &activated[0][k], HIDDEN + PAD);
      wmma::load_matrix_sync(b, w2 + static_cast<long>(first_out + 16 * warp) * hidden_padded + h + k,
                             hidden_padded);
      wmma::mma_sync(result, a, b, result);
    }
    __syncthreads();  // before the next 64 overwrite sums and activated
  }
  wmma::store_matrix_sync(&sums[0][16 * warp], result, HIDDEN + 4, wmma::mem_row_major);
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS * OUT_TILE; i += WARPS * 32) {
    const int row = first_row + i / OUT_TILE, column = first_out + i % OUT_TILE;
    if (row < rows && column < out) {
      y[static_cast<long>(row) * out + column] = sums[i / OUT_TILE][i % OUT_TILE] + b2[column];
    }
  }
}
