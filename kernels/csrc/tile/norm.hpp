// SPDX-License-Identifier: Apache-2.0
// Norms of one row: a fixed order of summation, whatever the batch and the instruction set; the mean first
// and then the squares of the differences from it, because the difference of large sums would cancel. In
// place, if x is y.
#pragma once

#include <cstddef>

#include "tile/tail.hpp"

namespace fused_mlp {

template <class V>
struct NormRow {
  using Reg = typename V::Reg;
  static constexpr std::size_t kLanes = V::kLanes;
  // Every instruction set has the same 64 sums, which also hide the latency of addition; those of the columns
  // after the last 64 go to the first 16.
  static constexpr std::size_t kColumns = 64;
  static constexpr std::size_t kParts = 16 / kLanes;
  static constexpr std::size_t kSums = kColumns / kLanes;

  // Adds `term` of every register of x to the sums. Lanes past the end are `fill`.
  template <class Term>
  static float sum_terms(const float* x, std::size_t n, float fill, const Term& term) {
    Reg sums[kSums];
#pragma GCC unroll 16
    for (std::size_t s = 0; s < kSums; ++s) sums[s] = V::zero();
    std::size_t c = 0;
    for (; c + kColumns <= n; c += kColumns) {
#pragma GCC unroll 16
      for (std::size_t s = 0; s < kSums; ++s) sums[s] = term(sums[s], V::load(x + c + s * kLanes));
    }
    for (; c < n; c += kParts * kLanes) {
#pragma GCC unroll 4
      for (std::size_t p = 0; p < kParts; ++p) {
        const std::size_t at = c + p * kLanes;
        if (at < n) sums[p] = term(sums[p], Tail<V>::load(x, at, n, fill));
      }
    }
    // In halves: 64 to 32 as neighbours, then lanes that are 8 and 4 columns apart, and those of add_lanes.
#pragma GCC unroll 4
    for (std::size_t p = 0; p < kParts; ++p) {
      sums[p] = (sums[p] + sums[kParts + p]) + (sums[2 * kParts + p] + sums[3 * kParts + p]);
    }
#pragma GCC unroll 4
    for (std::size_t half = kParts / 2; half > 0; half /= 2) {
      for (std::size_t p = 0; p < half; ++p) sums[p] = sums[p] + sums[p + half];
    }
    return V::add_lanes(sums[0]);
  }

  static float sum(const float* x, std::size_t n) {
    return sum_terms(x, n, 0.0f, [](Reg sum, Reg v) { return sum + v; });
  }

  // Sums (x - mean)^2. Lanes past the end hold `mean` and add nothing.
  static float sum_of_squares(const float* x, std::size_t n, float mean) {
    const Reg centre = V::set1(mean);
    return sum_terms(x, n, mean, [&](Reg sum, Reg v) {
      const Reg d = v - centre;
      return V::fma(d, d, sum);
    });
  }

  // Finishes a normalized value: * weight + bias where they are not null (padded to whole registers), then
  // max(floor, value). `floor` is 0 for relu, else -infinity; NaN passes through.
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
