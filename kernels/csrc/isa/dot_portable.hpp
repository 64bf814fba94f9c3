// SPDX-License-Identifier: Apache-2.0
// int8 dot products on any target, two products of int16 at once: with SSE2 and NEON, which every x86-64 and
// aarch64 has, else element by element.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/vec_portable.hpp"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace fused_mlp {

struct PortableDot {
  using Sum = Portable::Mask;
  using Value = std::int16_t;
  using Words = std::int16_t __attribute__((vector_size(16)));
  using Inputs = Words;
  using Weights = Words;
  static constexpr std::size_t kGroup = 2;
  static constexpr std::int32_t kOffset = 0;
  static constexpr double kSpeed = 1.5;

  static Sum zero() { return Sum{}; }
  static Sum load_sum(const std::int32_t* p) {
    Sum v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static Sum add(Sum a, Sum b) { return (Sum)((Portable::Unsigned)a + (Portable::Unsigned)b); }
  static Sum max(Sum a, Sum b) {
    const Sum larger = (Sum)(a > b);
    return (larger & a) | (~larger & b);
  }
  static Sum bits(Portable::Reg v) { return (Sum)v; }
  static std::int32_t max_lanes(Sum v) {
    std::int32_t largest = v[0];
    for (int i = 1; i < 4; ++i) largest = v[i] > largest ? v[i] : largest;
    return largest;
  }
  static Portable::Reg to_float(Sum v) { return __builtin_convertvector(v, Portable::Reg); }

  static Inputs broadcast(const std::uint32_t* p) {
    std::uint32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return (Inputs)Portable::Unsigned{v, v, v, v};
  }
  static Weights load(const std::int8_t* p) {
    using Bytes = std::int8_t __attribute__((vector_size(8)));
    Bytes v;
    __builtin_memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, Words);
  }
  static Sum dot(Sum sum, Inputs x, Weights w) {
#if defined(__SSE2__)
    return add(sum, (Sum)_mm_madd_epi16((__m128i)x, (__m128i)w));
#elif defined(__aarch64__)
    const int32x4_t low = vmull_s16(vget_low_s16((int16x8_t)x), vget_low_s16((int16x8_t)w));
    const int32x4_t high = vmull_high_s16((int16x8_t)x, (int16x8_t)w);
    return add(sum, (Sum)vpaddq_s32(low, high));
#else
    for (int i = 0; i < 4; ++i) {
      const std::int32_t pair = x[2 * i] * w[2 * i] + x[2 * i + 1] * w[2 * i + 1];
      sum[i] =
          static_cast<std::int32_t>(static_cast<std::uint32_t>(sum[i]) + static_cast<std::uint32_t>(pair));
    }
    return sum;
#endif
  }
  // Adding 1.5 * 2^23 rounds to an integer, to even in a tie, and keeps it in the low bits.
  static Portable::Unsigned rounded(Portable::Reg v) {
    return (Portable::Unsigned)(v + 12582912.0f) - 0x4B400000u;
  }
  static void store_rounded(Value* p, Portable::Reg v) {
    const Portable::Unsigned bits = rounded(v);
    for (int i = 0; i < 4; ++i) p[i] = static_cast<Value>(bits[i]);
  }
};

}  // namespace fused_mlp
