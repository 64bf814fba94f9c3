// CUDA C++ on the host, as far as fused_mlp.cu needs it: a thread for each thread of a block, a barrier for
// __syncthreads. A fragment is the whole matrix in every lane, so that all lanes of a warp compute and store the same.
#pragma once
#include <barrier>
#include <cmath>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __restrict__ __restrict
#define __shared__ static
#define __launch_bounds__(threads)
#define __align__(bytes) __attribute__((aligned(bytes)))

using half = _Float16;
inline half __float2half(float value) { return static_cast<half>(value); }

struct Index {
  int x, y;
};
inline thread_local Index threadIdx, blockIdx;
inline std::barrier<>* block_barrier = nullptr;
inline void __syncthreads() { block_barrier->arrive_and_wait(); }

// Blocks one after the other, in an order of their own: none may need another.
inline void launch(int columns, int lines, int threads, const std::function<void()>& kernel) {
  for (int block = columns * lines; block-- > 0;) {
    std::barrier<> barrier(threads);
    block_barrier = &barrier;
    std::vector<std::jthread> running;
    for (int thread = 0; thread < threads; ++thread) {
      running.emplace_back([=, &kernel] {
        threadIdx = {thread, 0};
        blockIdx = {block % columns, block / columns};
        kernel();
      });
    }
  }
}
