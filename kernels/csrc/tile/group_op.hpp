// SPDX-License-Identifier: Apache-2.0
// The steps of one row that choose, count, or work on vectors side by side: where, bucketize, argmax, number,
// pick, dot, reduce, repeat. Ids are kept in the bits of floats, and are only ever copied.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/isa.hpp"
#include "tile/activation_math.hpp"
#include "tile/norm.hpp"
#include "tile/tail.hpp"

namespace fused_mlp {

template <class V>
struct GroupOps {
  using Reg = typename V::Reg;
  static constexpr std::size_t kLanes = V::kLanes;

  // Where the result is: always in y.
  static const float* run(const RowOp& op, const float* x, const float* other, const float* third, float* y) {
    switch (op.kind) {
      case RowKind::kWhere:
        each(op.width, y, [&](std::size_t c, std::size_t n) {
          const auto zero = is_zero(load(x + c, n));
          return V::select(zero, load(third + c, n), load(other + c, n));
        });
        break;
      case RowKind::kBucketize:
        for (std::size_t c = 0; c < op.in; ++c) put_id(y + c, bucket(op, x[c]));
        break;
      case RowKind::kArgmax:
        put_id(y, largest(x, op.in));
        break;
      case RowKind::kNumber:
        for (std::size_t c = 0; c < op.in; ++c) y[c] = static_cast<float>(id_at(x + c));
        break;
      case RowKind::kPick:
        __builtin_memcpy(y, x + static_cast<std::size_t>(id_at(other)) * op.width, op.width * sizeof(float));
        break;
      case RowKind::kDot:
        dot(op, x, y);
        break;
      case RowKind::kReduce:
        reduce(op, x, y);
        break;
      case RowKind::kRepeat:
        repeat(op, x, y);
        break;
      default:
        break;
    }
    return y;
  }

 private:
  static std::int32_t id_at(const float* word) {
    std::int32_t id;
    __builtin_memcpy(&id, word, sizeof id);
    return id;
  }
  static void put_id(float* word, std::size_t value) {
    const auto id = static_cast<std::int32_t>(value);
    __builtin_memcpy(word, &id, sizeof id);
  }

  static Reg load(const float* p, std::size_t n) { return n >= kLanes ? V::load(p) : V::load_part(p, n); }

  // y[c, c + n) = value(c, n), for whole registers and then the rest.
  template <class Value>
  static void each(std::size_t width, float* y, const Value& value) {
    std::size_t c = 0;
    for (; c + kLanes <= width; c += kLanes) V::store(y + c, value(c, kLanes));
    if (c < width) V::store_part(y + c, value(c, width - c), width - c);
  }

  static typename V::Mask is_zero(Reg v) {
    // NaN is not zero.
    const Reg size = V::select(V::is_nan(v), V::set1(1.0f), V::abs(v));
    return V::less(size, V::set1(__FLT_DENORM_MIN__));
  }

  // NaN is below no boundary, and so beyond all.
  static std::size_t bucket(const RowOp& op, float value) {
    std::size_t first = 0;
    for (std::size_t left = op.count; left > 0;) {
      const std::size_t half = left / 2;
      const float boundary = op.weight[first + half];
      const bool beyond = op.flag ? !(value < boundary) : !(value <= boundary);
      first = beyond ? first + half + 1 : first;
      left = beyond ? left - half - 1 : half;
    }
    return first;
  }

  static std::size_t largest(const float* x, std::size_t n) {
    std::size_t best = 0;
    for (std::size_t c = 1; c < n; ++c) {
      if (x[best] != x[best]) break;
      if (x[c] > x[best] || x[c] != x[c]) best = c;
    }
    return best;
  }

  // Four vectors at once, each in a sum of its own.
  static void dot(const RowOp& op, const float* x, float* y) {
    const std::size_t length = op.in / op.groups;
    for (std::size_t i = 0; i < op.groups; ++i) {
      const float* const a = x + i * length;
      const std::size_t pairs = i + (op.flag ? 1 : 0);
      std::size_t j = 0;
      for (; j + 4 <= pairs; j += 4) y = dot_with<4>(a, x + j * length, length, y);
      for (; j < pairs; ++j) y = dot_with<1>(a, x + j * length, length, y);
    }
  }
  template <std::size_t Count>
  static float* dot_with(const float* a, const float* b, std::size_t length, float* y) {
    Reg sums[Count];
#pragma GCC unroll 4
    for (std::size_t k = 0; k < Count; ++k) sums[k] = V::zero();
    for (std::size_t c = 0; c < length; c += kLanes) {
      const std::size_t n = length - c;
      const Reg left = load(a + c, n);
#pragma GCC unroll 4
      for (std::size_t k = 0; k < Count; ++k) {
        sums[k] = V::multiply_add(left, load(b + k * length + c, n), sums[k]);
      }
    }
#pragma GCC unroll 4
    for (std::size_t k = 0; k < Count; ++k) y[k] = V::add_lanes(sums[k]);
    return y + Count;
  }

  static void reduce(const RowOp& op, const float* x, float* y) {
    const std::size_t length = op.in / op.groups;
    const bool max = op.reduction == Reduction::kMax, mean = op.reduction == Reduction::kMean;
    if (op.flag) {
      for (std::size_t g = 0; g < op.groups; ++g, x += length) {
        y[g] = max ? maximum(x, length) : NormRow<V>::sum(x, length);
        if (mean) y[g] /= static_cast<float>(length);
      }
      return;
    }
    const Reg divisor = V::set1(static_cast<float>(op.groups));
    each(op.width, y, [&](std::size_t c, std::size_t n) {
      Reg total = load(x + c, n);
      for (std::size_t g = 1; g < op.groups; ++g) {
        const Reg value = load(x + g * length + c, n);
        total = max ? Math<V>::template combine<Combination::kMaximum>(total, value) : total + value;
      }
      return mean ? total / divisor : total;
    });
  }

  // NaN if there is one.
  static float maximum(const float* x, std::size_t n) {
    float best = x[0];
    for (std::size_t c = 1; c < n; ++c) {
      if (best != best) break;
      if (!(x[c] <= best)) best = x[c];
    }
    return best;
  }

  static void repeat(const RowOp& op, const float* x, float* y) {
    const std::size_t length = op.in / op.groups;
    for (std::size_t g = 0; g < op.groups; ++g, x += length) {
      for (std::size_t k = 0; k < op.count; ++k, y += length) {
        __builtin_memcpy(y, x, length * sizeof(float));
      }
    }
  }
};

}  // namespace fused_mlp
