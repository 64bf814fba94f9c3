// SPDX-License-Identifier: Apache-2.0
// int8 dot products with the dot product instruction of NEON (Armv8.2): four at once, of signed bytes.
// Written as assembly where the compiler is not told that all machines have it.
#pragma once

#include "isa/dot_portable.hpp"

namespace fused_mlp {

struct NeonDot : PortableDot {
  using Value = std::int8_t;
  using Bytes = std::int8_t __attribute__((vector_size(16)));
  using Inputs = Bytes;
  using Weights = Bytes;
  static constexpr std::size_t kGroup = 4;
  static constexpr double kSpeed = 3.0;

  static Inputs broadcast(const std::uint32_t* p) { return (Inputs)PortableDot::broadcast(p); }
  static Weights load(const std::int8_t* p) {
    Weights v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static Sum dot(Sum sum, Inputs x, Weights w) {
#if defined(__ARM_FEATURE_DOTPROD)
    return (Sum)vdotq_s32((int32x4_t)sum, (int8x16_t)x, (int8x16_t)w);
#else
    asm(".arch armv8.2-a+dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(x), "w"(w));
    return sum;
#endif
  }
  static void store_rounded(Value* p, Portable::Reg v) {
    const Portable::Unsigned bits = rounded(v);
    for (int i = 0; i < 4; ++i) p[i] = static_cast<Value>(bits[i]);
  }
};

}  // namespace fused_mlp
