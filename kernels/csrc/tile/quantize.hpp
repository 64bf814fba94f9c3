// SPDX-License-Identifier: Apache-2.0
// Rows of float32 as int8, symmetric, each with a scale of its own: the largest magnitude becomes 127. The
// same bits on every instruction set. A row with NaN or infinity gets the scale NaN, which makes every output
// of the product NaN; magnitudes below 2^-100 / 127 count as zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/isa.hpp"
#include "tile/tail.hpp"

namespace fused_mlp {

template <class V, class D>
struct Quantize {
  using Reg = typename V::Reg;
  using Sum = typename D::Sum;
  static constexpr std::size_t kLanes = V::kLanes;

  static void run(std::size_t width, const RowCall& call) {
    for (std::size_t r = 0; r < call.rows; ++r) {
      row(call.x + r * call.x_stride, width, call.y + r * call.y_stride);
    }
  }

 private:
  static void row(const float* x, std::size_t n, float* record) {
    const float largest = largest_magnitude(x, n);
    const float range = largest < 0x1p-100f ? 0x1p-100f : largest;  // NaN stays
    record[0] = range / 127.0f + (range - range);                   // infinity becomes NaN
    const Reg factor = V::set1(127.0f / range);
    auto* const values = reinterpret_cast<typename D::Value*>(record + kQuantizedHeader);
    std::size_t c = 0;
    for (; c + kLanes <= n; c += kLanes) D::store_rounded(values + c, V::load(x + c) * factor);
    // Whole registers: there is space for them, and the weights beside the padding are zero.
    if (c < n) D::store_rounded(values + c, Tail<V>::load(x, c, n) * factor);
  }

  // NaN if there is one. Compares bits: those of NaN are the largest, and no instruction set keeps NaN in
  // max.
  static float largest_magnitude(const float* x, std::size_t n) {
    Sum largest[4] = {D::zero(), D::zero(), D::zero(), D::zero()};
    std::size_t c = 0;
    for (; c + 4 * kLanes <= n; c += 4 * kLanes) {
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i) {
        largest[i] = D::max(largest[i], D::bits(V::abs(V::load(x + c + i * kLanes))));
      }
    }
    for (; c < n; c += kLanes) largest[0] = D::max(largest[0], D::bits(V::abs(Tail<V>::load(x, c, n))));
    const std::int32_t bits =
        D::max_lanes(D::max(D::max(largest[0], largest[1]), D::max(largest[2], largest[3])));
    return __builtin_bit_cast(float, bits);
  }
};

}  // namespace fused_mlp
