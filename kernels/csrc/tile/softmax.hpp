// softmax and log_softmax of one row, in place, with a fixed summation order.
#pragma once

#include <cstddef>

#include "tile/activation_math.hpp"

extern "C" float logf(float);

namespace fused_mlp {

template <class V>
struct Softmax {
  using Reg = typename V::Reg;
  static constexpr std::size_t kLanes = V::kLanes;

  // Loads the vector at column c; lanes past the end of the row are -infinity, whose exponential is zero.
  static Reg load(const float* row, std::size_t c, std::size_t n) {
    if (c + kLanes <= n) return V::load(row + c);
    alignas(64) float tail[kLanes];
    for (std::size_t i = 0; i < kLanes; ++i) tail[i] = c + i < n ? row[c + i] : -__builtin_inff();
    return V::load(tail);
  }
  static void store(float* row, std::size_t c, std::size_t n, Reg v) {
    if (c + kLanes <= n) return V::store(row + c, v);
    alignas(64) float tail[kLanes];
    V::store(tail, v);
    __builtin_memcpy(row + c, tail, (n - c) * sizeof(float));
  }

  static void run(float* row, std::size_t n, bool log) {
    alignas(64) float lanes[kLanes];
    Reg top = V::set1(-__builtin_inff());
    for (std::size_t c = 0; c < n; c += kLanes) top = V::max(top, load(row, c, n));
    V::store(lanes, top);
    float highest = lanes[0];
    for (std::size_t i = 1; i < kLanes; ++i) highest = lanes[i] > highest ? lanes[i] : highest;

    // NaN, +infinity or a row of only -infinity makes the sum NaN and thereby the whole row, as in PyTorch.
    const Reg offset = V::set1(highest);
    Reg sums = V::zero();
    for (std::size_t c = 0; c < n; c += kLanes) {
      const Reg shifted = load(row, c, n) - offset;
      const Reg e = Math<V>::exp(shifted);
      sums = sums + e;
      store(row, c, n, log ? shifted : e);
    }
    V::store(lanes, sums);
    float sum = lanes[0];
    for (std::size_t i = 1; i < kLanes; ++i) sum += lanes[i];

    const Reg last = V::set1(log ? logf(sum) : sum);
    for (std::size_t c = 0; c < n; c += kLanes) {
      const Reg v = load(row, c, n);
      store(row, c, n, log ? v - last : v / last);
    }
  }
};

}  // namespace fused_mlp
