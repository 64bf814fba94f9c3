// SPDX-License-Identifier: Apache-2.0
// softmax and log_softmax of one row, with the same summation order on every instruction set. In place, if x
// is y.
#pragma once

#include <cstddef>

#include "tile/activation_math.hpp"
#include "tile/tail.hpp"

extern "C" float logf(float) noexcept;

namespace fused_mlp {

template <class V>
struct Softmax {
  using Reg = typename V::Reg;
  static constexpr std::size_t kLanes = V::kLanes;
  static constexpr std::size_t kSums = 16;

  // Lanes past the end of the row are -infinity, whose exponential is zero.
  static Reg load(const float* row, std::size_t c, std::size_t n) {
    return Tail<V>::load(row, c, n, -__builtin_inff());
  }

  static void run(const float* x, float* y, std::size_t n, bool log) {
    alignas(64) float lanes[kLanes];
    Reg top = V::set1(-__builtin_inff());
    for (std::size_t c = 0; c < n; c += kLanes) top = V::max(top, load(x, c, n));
    V::store(lanes, top);
    float highest = lanes[0];
    for (std::size_t i = 1; i < kLanes; ++i) highest = lanes[i] > highest ? lanes[i] : highest;

    // NaN, +infinity or a row of only -infinity makes the sum NaN and thereby the whole row, as in PyTorch.
    const Reg offset = V::set1(highest);
    alignas(64) float sums[kSums] = {};
    for (std::size_t c = 0; c < n; c += kLanes) {
      const Reg shifted = load(x, c, n) - offset;
      const Reg e = Math<V>::exp(shifted);
      float* const at = sums + c % kSums;
      V::store(at, V::load(at) + e);
      Tail<V>::store(y, c, n, log ? shifted : e);
    }
    float sum = sums[0];
    for (std::size_t i = 1; i < kSums; ++i) sum += sums[i];

    const Reg last = V::set1(log ? logf(sum) : sum);
    for (std::size_t c = 0; c < n; c += kLanes) {
      const Reg v = Tail<V>::load(y, c, n);
      Tail<V>::store(y, c, n, log ? v - last : v / last);
    }
  }
};

}  // namespace fused_mlp
