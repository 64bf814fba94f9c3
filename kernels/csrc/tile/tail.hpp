// SPDX-License-Identifier: Apache-2.0
// The last, partial register of a row: computed by the same instructions as whole ones, but nothing outside
// of the row is read or written.
#pragma once

#include <cstddef>

namespace fused_mlp {

template <class V>
struct Tail {
  using Reg = typename V::Reg;
  static constexpr std::size_t kLanes = V::kLanes;

  // The vector at column c of a row of n values; lanes past its end are `fill`.
  static Reg load(const float* row, std::size_t c, std::size_t n, float fill = 0.0f) {
    if (c + kLanes <= n) return V::load(row + c);
    alignas(64) float lanes[kLanes];
    for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = c + i < n ? row[c + i] : fill;
    return V::load(lanes);
  }
  static void store(float* row, std::size_t c, std::size_t n, Reg v) {
    if (c + kLanes <= n) return V::store(row + c, v);
    alignas(64) float lanes[kLanes];
    V::store(lanes, v);
    for (std::size_t i = 0; c + i < n; ++i) row[c + i] = lanes[i];
  }
};

}  // namespace fused_mlp
