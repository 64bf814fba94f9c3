// SPDX-License-Identifier: Apache-2.0
// int8 dot products with AVX-512: by VNNI, or without it. Written as assembly, because the file is compiled
// for machines without VNNI too.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace fused_mlp {

struct Avx512Integers {
  using Sum = __m512i;
  static Sum zero() { return _mm512_setzero_si512(); }
  static Sum load_sum(const std::int32_t* p) { return _mm512_loadu_si512(p); }
  static Sum add(Sum a, Sum b) { return _mm512_add_epi32(a, b); }
  static Sum max(Sum a, Sum b) { return _mm512_max_epi32(a, b); }
  static Sum bits(__m512 v) { return _mm512_castps_si512(v); }
  static std::int32_t max_lanes(Sum v) { return _mm512_reduce_max_epi32(v); }
  static __m512 to_float(Sum v) { return _mm512_cvtepi32_ps(v); }
  using Inputs = __m512i;
  static Inputs broadcast(const std::uint32_t* p) { return _mm512_set1_epi32(static_cast<int>(*p)); }
};

// Four products at once, of unsigned inputs: 128 is added to them, and the sums start with what that adds.
struct Avx512Vnni : Avx512Integers {
  using Value = std::uint8_t;
  static constexpr std::size_t kGroup = 4;
  static constexpr std::int32_t kOffset = 128;
  static constexpr double kSpeed = 3.0;
  using Weights = __m512i;
  static Weights load(const std::int8_t* p) { return _mm512_loadu_si512(p); }
  static Sum dot(Sum sum, Inputs x, Weights w) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
  }
  static void store_rounded(Value* p, __m512 v) {
    const __m512i offset = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(kOffset));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(offset));
  }
};

// Two products at once, of int16: the sum of two cannot overflow.
struct Avx512Madd : Avx512Integers {
  using Value = std::int16_t;
  static constexpr std::size_t kGroup = 2;
  static constexpr std::int32_t kOffset = 0;
  static constexpr double kSpeed = 1.5;
  using Weights = __m512i;
  static Weights load(const std::int8_t* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Sum dot(Sum sum, Inputs x, Weights w) { return _mm512_add_epi32(sum, _mm512_madd_epi16(x, w)); }
  static void store_rounded(Value* p, __m512 v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v)));
  }
};

}  // namespace fused_mlp
