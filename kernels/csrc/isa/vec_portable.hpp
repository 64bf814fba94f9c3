// SPDX-License-Identifier: Apache-2.0
// GCC/Clang vector extensions: 4 lanes, on any target. min and max return the second operand when either
// is NaN, as on x86. Products multiply and add with one rounding on aarch64, and with two elsewhere; `fma`
// rounds once everywhere, so that functions are the same on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace fused_mlp {

struct Portable {
  using Reg = float __attribute__((vector_size(16)));
  using Mask = std::int32_t __attribute__((vector_size(16)));
  using Unsigned = std::uint32_t __attribute__((vector_size(16)));
  using Double = double __attribute__((vector_size(32)));
  using Long = std::int64_t __attribute__((vector_size(32)));
  static constexpr int kLanes = 4;
  static constexpr int kVectors = 4;  // registers per panel row
#if defined(__aarch64__)
  static constexpr int kMaxRows = 6;  // 6 x 4 sums + 4 weights + 1 input = 29 of 32 registers
#else
  static constexpr int kMaxRows = 2;  // 2 x 4 sums + 4 weights + 1 input = 13 of 16 registers
#endif
  static constexpr int panels_at_once(int rows) { return rows == 1 ? 2 : 1; }

  static void pin(Reg&) {}
  static Reg zero() { return Reg{}; }
  static Reg set1(float v) { return Reg{v, v, v, v}; }
  static Reg load(const float* p) {
    Reg v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  // bfloat16 in pairs: the first, or the second, of each. A pair is read as one number, lowest bits first.
  static Reg load_low_halves(const std::uint16_t* p) { return (Reg)(load_pairs(p) << 16); }
  static Reg load_high_halves(const std::uint16_t* p) { return (Reg)(load_pairs(p) & 0xFFFF0000u); }
  static Unsigned load_pairs(const std::uint16_t* p) {
    Unsigned v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  // The first n lanes; nothing else is read or written.
  static Reg load_part(const float* p, std::size_t n) {
    Reg v{};
    for (std::size_t i = 0; i < n; ++i) v[i] = p[i];
    return v;
  }
  static void store_part(float* p, Reg v, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) p[i] = v[i];
  }
  static Reg load_halves(const std::uint16_t* p) { return (Reg)(Unsigned{p[0], p[1], p[2], p[3]} << 16); }
  static Reg load_bytes(const std::int8_t* p) {
    return __builtin_convertvector(Mask{p[0], p[1], p[2], p[3]}, Reg);
  }
  static void store(float* p, Reg v) { __builtin_memcpy(p, &v, sizeof v); }
  static Reg broadcast(const float* p) {
    float v;
    __builtin_memcpy(&v, p, sizeof v);
    return set1(v);
  }
#if defined(__aarch64__)
  static Reg fma(Reg a, Reg b, Reg c) {
    return (Reg)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
  }
  static Reg multiply_add(Reg a, Reg b, Reg c) { return fma(a, b, c); }
#else
  // The product is exact in double precision. The sum is rounded to odd there (inexact results get an odd
  // last bit), which the rounding to float32 cannot confuse with a tie.
  static Reg fma(Reg a, Reg b, Reg c) {
    const Double product = __builtin_convertvector(a, Double) * __builtin_convertvector(b, Double);
    const Double addend = __builtin_convertvector(c, Double);
    const Double sum = product + addend;
    const Double part = sum - product;
    const Double error = (product - (sum - part)) + (addend - part);
    const Long even = ((Long)sum & 1) - 1;
    const Long below = (Long)(error < 0.0) ^ ((Long)sum >> 63);  // the exact sum is nearer to zero
    const Long inexact = (Long)(error < 0.0) | (Long)(error > 0.0);
    const Long odd = (Long)sum + ((even & inexact) & (below | 1));
    return __builtin_convertvector((Double)odd, Reg);
  }
  static Reg multiply_add(Reg a, Reg b, Reg c) { return a * b + c; }
#endif
  static Mask less(Reg a, Reg b) { return (Mask)(a < b); }
  static Reg select(Mask m, Reg yes, Reg no) { return (Reg)((m & (Mask)yes) | (~m & (Mask)no)); }
  static Reg min(Reg a, Reg b) { return select(less(a, b), a, b); }
  static Reg max(Reg a, Reg b) { return select(less(b, a), a, b); }
  static Reg abs(Reg v) { return (Reg)((Mask)v & 0x7FFFFFFF); }
  static Reg copysign(Reg magnitude, Reg sign) { return (Reg)((Mask)magnitude | ((Mask)sign & INT32_MIN)); }

  static Reg sqrt(Reg v) {
    return Reg{__builtin_sqrtf(v[0]), __builtin_sqrtf(v[1]), __builtin_sqrtf(v[2]), __builtin_sqrtf(v[3])};
  }
  static Mask is_nan(Reg v) { return (Mask)(v != v); }
  static bool any(Mask m) { return (m[0] | m[1] | m[2] | m[3]) != 0; }
  static float add_lanes(Reg v) { return (v[0] + v[2]) + (v[1] + v[3]); }
  // x = m 2^exponent with m between sqrt(1/2) and sqrt(2); for positive normal numbers.
  static Reg split(Reg x, Reg& exponent) {
    const Mask n = (Mask)((Unsigned)x - 0x3F3504F3u) >> 23;
    exponent = __builtin_convertvector(n, Reg);
    return (Reg)((Unsigned)x - ((Unsigned)n << 23));
  }

  // t = 1.5 * 2^23 + n: the integer n sits in the low bits of t.
  static Mask is_odd(Reg t) { return -((Mask)t & 1); }
  // Negates v where the second bit of n is set.
  static Reg negate_by_second_bit(Reg v, Reg t) {
    return (Reg)((Unsigned)v ^ (((Unsigned)t << 30) & 0x80000000u));
  }
  static Reg pow2(Reg t) { return exponent((Mask)t - kMagicBits); }
  // 2^n as a product of two factors that are both normal numbers, for -252 <= n <= 254.
  static void pow2_factors(Reg t, Reg& first, Reg& second) {
    const Mask n = (Mask)t - kMagicBits;
    const Mask half = n >> 1;
    first = exponent(half);
    second = exponent(n - half);
  }

 private:
  static constexpr std::int32_t kMagicBits = 0x4B400000;
  // Unsigned, because the shift of a NaN's n would overflow, which is undefined for signed integers.
  static Reg exponent(Mask n) { return (Reg)(((Unsigned)n + 127u) << 23); }
};

}  // namespace fused_mlp
