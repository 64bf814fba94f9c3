// Norms of one row: a fixed order of summation, whatever the batch; the mean first and then the squares of
// the differences from it, because the difference of large sums would cancel. In place, if x is y.
#pragma once

#include <cstddef>

#include "tile/tail.hpp"

namespace fused_mlp {

template <class V>
struct NormRow {
  using Reg = typename V::Reg;
  static constexpr std::size_t kLanes = V::kLanes;
  static constexpr std::size_t kSums = 4;  // independent sums hide the latency of addition

  static float sum(const float* x, std::size_t n) {
    Reg sums[kSums];
    for (std::size_t s = 0; s < kSums; ++s) sums[s] = V::zero();
    std::size_t c = 0;
    for (; c + kSums * kLanes <= n; c += kSums * kLanes) {
#pragma GCC unroll 4
      for (std::size_t s = 0; s < kSums; ++s) sums[s] = sums[s] + V::load(x + c + s * kLanes);
    }
    for (; c < n; c += kLanes) sums[0] = sums[0] + Tail<V>::load(x, c, n);
    return V::add_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }

  // Of (x - mean)^2. Lanes past the end are `mean`, and add nothing.
  static float sum_of_squares(const float* x, std::size_t n, float mean) {
    const Reg centre = V::set1(mean);
    Reg sums[kSums];
    for (std::size_t s = 0; s < kSums; ++s) sums[s] = V::zero();
    std::size_t c = 0;
    for (; c + kSums * kLanes <= n; c += kSums * kLanes) {
#pragma GCC unroll 4
      for (std::size_t s = 0; s < kSums; ++s) {
        const Reg d = V::load(x + c + s * kLanes) - centre;
        sums[s] = V::fma(d, d, sums[s]);
      }
    }
    for (; c < n; c += kLanes) {
      const Reg d = Tail<V>::load(x, c, n, mean) - centre;
      sums[0] = V::fma(d, d, sums[0]);
    }
    return V::add_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }

  // What follows the statistics: * weight + bias where they are not null (padded to whole registers), then
  // max(floor, value): 0 for relu, else -infinity; NaN passes through.
  struct Finish {
    const float* weight;
    const float* bias;
    float floor;
  };

  // (x - mean) * by, or x / by.
  template <bool Divide>
  static void scale(const float* x, float* y, std::size_t n, float mean, float by, const Finish& finish) {
    const Reg centre = V::set1(mean), factor = V::set1(by), floor = V::set1(finish.floor);
    const float* const weight = finish.weight;
    const float* const bias = finish.bias;
    const auto one = [&](Reg v, std::size_t c) {
      v = Divide ? v / factor : (v - centre) * factor;
      if (weight != nullptr && bias != nullptr) {
        v = V::fma(v, V::load(weight + c), V::load(bias + c));
      } else if (weight != nullptr) {
        v = v * V::load(weight + c);
      } else if (bias != nullptr) {
        v = v + V::load(bias + c);
      }
      return V::max(floor, v);
    };
    std::size_t c = 0;
    for (; c + kLanes <= n; c += kLanes) V::store(y + c, one(V::load(x + c), c));
    if (c < n) Tail<V>::store(y, c, n, one(Tail<V>::load(x, c, n), c));
  }

  static void layer(const float* x, float* y, std::size_t n, float eps, const Finish& finish) {
    const float count = static_cast<float>(n);
    const float mean = sum(x, n) / count;
    const float variance = sum_of_squares(x, n, mean) / count;
    scale<false>(x, y, n, mean, 1.0f / __builtin_sqrtf(variance + eps), finish);
  }

  static void rms(const float* x, float* y, std::size_t n, float eps, const Finish& finish) {
    const float mean_square = sum_of_squares(x, n, 0.0f) / static_cast<float>(n);
    scale<false>(x, y, n, 0.0f, 1.0f / __builtin_sqrtf(mean_square + eps), finish);
  }

  // Divides, because the reciprocal of a tiny eps would be infinite.
  static void l2(const float* x, float* y, std::size_t n, float eps, const Finish& finish) {
    const float length = __builtin_sqrtf(sum_of_squares(x, n, 0.0f));
    scale<true>(x, y, n, 0.0f, length < eps ? eps : length, finish);
  }
};

}  // namespace fused_mlp
