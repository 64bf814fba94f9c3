// SPDX-License-Identifier: Apache-2.0
// The loops of probe.hpp, per instruction set: multiply-adds in registers, and sequential reading. Uses no
// std:: functions (layer.hpp says why).
#pragma once

#include <cstddef>
#include <cstdint>

namespace fused_mlp {

// Makes the compiler assume that the value changed. Static and always inlined, as ticks().
template <class Value>
[[gnu::always_inline]] static inline void keep(Value& v) {
#if defined(__x86_64__)
  asm volatile("" : "+x"(v));
#else
  asm volatile("" : "+w"(v));
#endif
}

template <class V>
struct ProbeLoops {
  using Reg = typename V::Reg;
  // More independent sums than FMA latency times throughput; few enough for 16 registers.
  static constexpr int kSums = 10;

  static double multiply_add(long rounds) {
    Reg sums[kSums];
    for (Reg& sum : sums) {
      sum = V::zero();
      keep(sum);  // otherwise the compiler merges the ten equal sums into one
    }
    Reg a = V::set1(0.999f);
    const Reg b = V::set1(0.001f);
    for (long i = 0; i < rounds; ++i) {
      keep(a);
#pragma GCC unroll 10
      for (int s = 0; s < kSums; ++s) sums[s] = V::multiply_add(sums[s], a, b);
    }
    for (Reg& sum : sums) keep(sum);
    return 2.0 * kSums * V::kLanes * static_cast<double>(rounds);
  }

  static void read(const float* data, std::size_t floats) {
    Reg sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    for (std::size_t i = 0; i + 4 * V::kLanes <= floats; i += 4 * V::kLanes) {
#pragma GCC unroll 4
      for (int s = 0; s < 4; ++s) sums[s] = sums[s] + V::load(data + i + s * V::kLanes);
    }
    for (Reg& sum : sums) keep(sum);
  }
};

// The same for int8 products.
template <class D>
struct Int8Probe {
  static constexpr int kSums = 10;

  static double multiply_add(long rounds) {
    typename D::Sum sums[kSums];
    for (auto& sum : sums) {
      sum = D::zero();
      keep(sum);
    }
    const std::uint32_t ones = 0x01010101;
    const std::int8_t bytes[sizeof(typename D::Sum)] = {};
    typename D::Inputs x = D::broadcast(&ones);
    typename D::Weights w = D::load(bytes);
    for (long i = 0; i < rounds; ++i) {
      keep(x);
      keep(w);
#pragma GCC unroll 10
      for (int s = 0; s < kSums; ++s) sums[s] = D::dot(sums[s], x, w);
    }
    for (auto& sum : sums) keep(sum);
    return 2.0 * kSums * (sizeof(typename D::Sum) / sizeof(std::int32_t)) * D::kGroup *
           static_cast<double>(rounds);
  }
};

}  // namespace fused_mlp
