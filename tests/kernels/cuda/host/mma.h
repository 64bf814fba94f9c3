// nvcuda::wmma on the host: see cuda_fp16.h. Refuses addresses and strides that the device would.
#pragma once
#include <cstdlib>
#include <type_traits>

#include "cuda_fp16.h"

namespace nvcuda::wmma {
struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  T at[16][16];
};

inline void require(const void* address, long stride, long element) {
  if (reinterpret_cast<std::uintptr_t>(address) % 32 || stride * element % 16) std::abort();
}

template <class F>
void fill_fragment(F& f, float value) {
  for (auto& row : f.at)
    for (auto& each : row) each = value;
}

template <class Use, int M, int N, int K, class T, class Layout>
void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& f, const T* from, unsigned stride) {
  require(from, stride, sizeof(T));
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j)
      f.at[i][j] = std::is_same_v<Layout, row_major> ? from[i * stride + j] : from[j * stride + i];
}

template <class A, class B, class C>
void mma_sync(C& d, const A& a, const B& b, const C& c) {
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) {
      float sum = c.at[i][j];
      for (int k = 0; k < 16; ++k) sum += static_cast<float>(a.at[i][k]) * static_cast<float>(b.at[k][j]);
      d.at[i][j] = sum;
    }
}

template <class F>
void store_matrix_sync(float* to, const F& f, unsigned stride, layout_t) {
  require(to, stride, sizeof(float));
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) to[i * stride + j] = f.at[i][j];
}
}  // namespace nvcuda::wmma
