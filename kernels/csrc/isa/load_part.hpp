// SPDX-License-Identifier: Apache-2.0
// Loads of less than a register. A masked load fetches the cache lines of the lanes that it leaves out, too,
// which for a row of a table is a miss; these touch only what they load.
#pragma once

#include <immintrin.h>

#include <cstddef>

namespace fused_mlp {
namespace {  // a copy for each instruction set

[[gnu::always_inline]] inline __m128 load_up_to_3(const float* p, std::size_t n) {
  const __m128 last = _mm_load_ss(p + n - 1);
  if (n == 1) return last;
  const __m128 two = _mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return n == 2 ? two : _mm_movelh_ps(two, last);
}

[[gnu::always_inline]] inline __m256 load_up_to_8(const float* p, std::size_t n) {
  if (n < 4) return _mm256_zextps128_ps256(load_up_to_3(p, n));
  const __m256 low = _mm256_zextps128_ps256(_mm_loadu_ps(p));
  if (n == 4) return low;
  return _mm256_insertf128_ps(low, n == 8 ? _mm_loadu_ps(p + 4) : load_up_to_3(p + 4, n - 4), 1);
}

}  // namespace
}  // namespace fused_mlp
