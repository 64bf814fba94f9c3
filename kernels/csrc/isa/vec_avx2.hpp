// SPDX-License-Identifier: Apache-2.0
// AVX2 + FMA: 8 lanes, 16 registers. min and max return the second operand when either is NaN.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "isa/load_part.hpp"

namespace fused_mlp {

struct Avx2 {
  using Reg = __m256;
  using Mask = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kVectors = 2;  // registers per panel row
  static constexpr int kMaxRows = 6;  // 6 x 2 sums + 2 weights + 1 input = 15 of 16 registers
  // Panels per tile of that many rows: 8 or more independent sums hide FMA latency.
  static constexpr int panels_at_once(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

  // Keeps a value in a register: otherwise compilers reload it for every use.
  static void pin(Reg& v) { asm("" : "+x"(v)); }
  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg set1(float v) { return _mm256_set1_ps(v); }
  static Reg load(const float* p) { return _mm256_loadu_ps(p); }
  // bfloat16 in pairs: the first, or the second, of each.
  static Reg load_low_halves(const std::uint16_t* p) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
  }
  static Reg load_high_halves(const std::uint16_t* p) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
  }
  // The first n lanes; nothing else is read or written.
  static Reg load_part(const float* p, std::size_t n) { return load_up_to_8(p, n); }
  static void store_part(float* p, Reg v, std::size_t n) { _mm256_maskstore_ps(p, first(n), v); }
  static __m256i first(std::size_t n) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lanes);
  }
  static Reg load_halves(const std::uint16_t* p) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static Reg load_bytes(const std::int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static void store(float* p, Reg v) { _mm256_storeu_ps(p, v); }
  static Reg broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg multiply_add(Reg a, Reg b, Reg c) { return fma(a, b, c); }
  static Reg min(Reg a, Reg b) { return _mm256_min_ps(a, b); }
  static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  static Mask less(Reg a, Reg b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static Reg select(Mask m, Reg yes, Reg no) { return _mm256_blendv_ps(no, yes, m); }
  static Reg abs(Reg v) { return _mm256_andnot_ps(set1(-0.0f), v); }
  static Reg copysign(Reg magnitude, Reg sign) {
    return _mm256_or_ps(magnitude, _mm256_and_ps(set1(-0.0f), sign));
  }

  static Reg sqrt(Reg v) { return _mm256_sqrt_ps(v); }
  static Mask is_nan(Reg v) { return _mm256_cmp_ps(v, v, _CMP_UNORD_Q); }
  static bool any(Mask m) { return _mm256_movemask_ps(m) != 0; }
  static float add_lanes(Reg v) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
  }
  // x = m 2^exponent with m between sqrt(1/2) and sqrt(2); for positive normal numbers.
  static Reg split(Reg x, Reg& exponent) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i n = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(0x3F3504F3)), 23);
    exponent = _mm256_cvtepi32_ps(n);
    return _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(n, 23)));
  }

  // t = 1.5 * 2^23 + n: the integer n sits in the low bits of t.
  static Mask is_odd(Reg t) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 31)); }
  // Negates v where the second bit of n is set.
  static Reg negate_by_second_bit(Reg v, Reg t) {
    const __m256i moved = _mm256_slli_epi32(_mm256_castps_si256(t), 30);
    return _mm256_xor_ps(v, _mm256_and_ps(_mm256_castsi256_ps(moved), set1(-0.0f)));
  }
  static Reg pow2(Reg t) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(127 << 23)));
  }
  // 2^n as a product of two factors that are both normal numbers, for -252 <= n <= 254.
  static void pow2_factors(Reg t, Reg& first, Reg& second) {
    const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(0x4B400000));
    const __m256i half = _mm256_srai_epi32(n, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    const __m256i rest = _mm256_sub_epi32(n, half);
    second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  }
};

}  // namespace fused_mlp
