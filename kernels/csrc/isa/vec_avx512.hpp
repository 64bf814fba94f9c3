// SPDX-License-Identifier: Apache-2.0
// AVX-512F: 16 lanes, 32 registers. min and max return the second operand when either is NaN.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "isa/load_part.hpp"

namespace fused_mlp {

struct Avx512 {
  using Reg = __m512;
  using Mask = __mmask16;
  static constexpr int kLanes = 16;
  static constexpr int kVectors = 2;   // registers per panel row
  static constexpr int kMaxRows = 12;  // 12 x 2 sums + 2 weights + 1 input = 27 of 32 registers
  // Panels per tile of that many rows: 8 or more independent sums hide FMA latency.
  static constexpr int panels_at_once(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

  // Keeps a value in a register: otherwise compilers reload it for every use.
  static void pin(Reg& v) { asm("" : "+v"(v)); }
  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg set1(float v) { return _mm512_set1_ps(v); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  // bfloat16 in pairs: the first, or the second, of each.
  static Reg load_low_halves(const std::uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
  }
  static Reg load_high_halves(const std::uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_and_epi32(_mm512_loadu_si512(p), _mm512_set1_epi32(-65536)));
  }
  // The first n lanes; nothing else is read or written.
  static Reg load_part(const float* p, std::size_t n) {
    if (n <= 8) return _mm512_zextps256_ps512(load_up_to_8(p, n));
    const __m512d low = _mm512_castps_pd(_mm512_zextps256_ps512(_mm256_loadu_ps(p)));
    return _mm512_castpd_ps(_mm512_insertf64x4(low, _mm256_castps_pd(load_up_to_8(p + 8, n - 8)), 1));
  }
  static void store_part(float* p, Reg v, std::size_t n) { _mm512_mask_storeu_ps(p, first(n), v); }
  static Mask first(std::size_t n) { return static_cast<Mask>((1u << n) - 1u); }
  static Reg load_halves(const std::uint16_t* p) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static Reg load_bytes(const std::int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static void store(float* p, Reg v) { _mm512_storeu_ps(p, v); }
  static Reg broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg multiply_add(Reg a, Reg b, Reg c) { return fma(a, b, c); }
  static Reg min(Reg a, Reg b) { return _mm512_min_ps(a, b); }
  static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static Mask less(Reg a, Reg b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static Reg select(Mask m, Reg yes, Reg no) { return _mm512_mask_blend_ps(m, no, yes); }
  static Reg abs(Reg v) { return _mm512_abs_ps(v); }
  static Reg copysign(Reg magnitude, Reg sign) {
    const __m512i bits = _mm512_and_epi32(_mm512_castps_si512(sign), _mm512_set1_epi32(1 << 31));
    return _mm512_castsi512_ps(_mm512_or_epi32(_mm512_castps_si512(magnitude), bits));
  }

  static Reg sqrt(Reg v) { return _mm512_sqrt_ps(v); }
  static Mask is_nan(Reg v) { return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q); }
  static bool any(Mask m) { return m != 0; }
  static float add_lanes(Reg v) {
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), high);
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
  }
  // x = m 2^exponent with m between sqrt(1/2) and sqrt(2); for positive normal numbers.
  static Reg split(Reg x, Reg& exponent) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i n = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(0x3F3504F3)), 23);
    exponent = _mm512_cvtepi32_ps(n);
    return _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(n, 23)));
  }

  // t = 1.5 * 2^23 + n: the integer n sits in the low bits of t.
  static Mask is_odd(Reg t) { return _mm512_test_epi32_mask(_mm512_castps_si512(t), _mm512_set1_epi32(1)); }
  // Negates v where the second bit of n is set.
  static Reg negate_by_second_bit(Reg v, Reg t) {
    const __m512i moved = _mm512_slli_epi32(_mm512_castps_si512(t), 30);
    const __m512i sign = _mm512_and_epi32(moved, _mm512_set1_epi32(1 << 31));
    return _mm512_castsi512_ps(_mm512_xor_epi32(_mm512_castps_si512(v), sign));
  }
  static Reg pow2(Reg t) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(127 << 23)));
  }
  // 2^n as a product of two factors that are both normal numbers, for -252 <= n <= 254.
  static void pow2_factors(Reg t, Reg& first, Reg& second) {
    const __m512i n = _mm512_sub_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(0x4B400000));
    const __m512i half = _mm512_srai_epi32(n, 1);
    const __m512i bias = _mm512_set1_epi32(127);
    first = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23));
    const __m512i rest = _mm512_sub_epi32(n, half);
    second = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(rest, bias), 23));
  }
};

}  // namespace fused_mlp
