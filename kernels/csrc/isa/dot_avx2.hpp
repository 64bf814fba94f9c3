// SPDX-License-Identifier: Apache-2.0
// int8 dot products with AVX2, and with AVX-VNNI. The latter is written as assembly, because the file is
// compiled for machines without it too.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace fused_mlp {

struct Avx2Integers {
  using Sum = __m256i;
  static Sum zero() { return _mm256_setzero_si256(); }
  static Sum load_sum(const std::int32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Sum add(Sum a, Sum b) { return _mm256_add_epi32(a, b); }
  static Sum max(Sum a, Sum b) { return _mm256_max_epi32(a, b); }
  static Sum bits(__m256 v) { return _mm256_castps_si256(v); }
  static std::int32_t max_lanes(Sum v) {
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(half, _mm_shuffle_epi32(half, 0xB1)));
  }
  static __m256 to_float(Sum v) { return _mm256_cvtepi32_ps(v); }
  static __m128i rounded(__m256 v) {  // to int16
    const __m256i whole = _mm256_cvtps_epi32(v);
    return _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  }
  using Inputs = __m256i;
  static Inputs broadcast(const std::uint32_t* p) { return _mm256_set1_epi32(static_cast<int>(*p)); }
};

// Four products at once, of unsigned inputs: 128 is added to them, and the sums start with what that adds.
struct AvxVnni : Avx2Integers {
  using Value = std::uint8_t;
  static constexpr std::size_t kGroup = 4;
  static constexpr std::int32_t kOffset = 128;
  static constexpr double kSpeed = 3.0;
  using Weights = __m256i;
  static Weights load(const std::int8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Sum dot(Sum sum, Inputs x, Weights w) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(x), "x"(w));
    return sum;
  }
  static void store_rounded(Value* p, __m256 v) {
    const __m128i words = rounded(v);
    const __m128i bytes = _mm_xor_si128(_mm_packs_epi16(words, words), _mm_set1_epi8(-128));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), bytes);
  }
};

// Two products at once, of int16: the sum of two cannot overflow. (vpmaddubsw multiplies int8, but
// saturates.)
struct Avx2Madd : Avx2Integers {
  using Value = std::int16_t;
  static constexpr std::size_t kGroup = 2;
  static constexpr std::int32_t kOffset = 0;
  static constexpr double kSpeed = 1.5;
  using Weights = __m256i;
  static Weights load(const std::int8_t* p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Sum dot(Sum sum, Inputs x, Weights w) { return _mm256_add_epi32(sum, _mm256_madd_epi16(x, w)); }
  static void store_rounded(Value* p, __m256 v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), rounded(v));
  }
};

}  // namespace fused_mlp
