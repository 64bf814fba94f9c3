// SPDX-License-Identifier: Apache-2.0
// The steps that are no matrix product, row by row: each row is finished while it is in the L1 cache.
#pragma once

#include <cstddef>
#include <utility>

#include "isa/isa.hpp"
#include "tile/group_op.hpp"
#include "tile/norm.hpp"
#include "tile/softmax.hpp"
#include "tile/tail.hpp"
#include "tile/tile_activation.hpp"

namespace fused_mlp {

// a combined with b -> y, all (rows, columns). Reads and writes only these; y may be a or b.
template <class V>
struct Combining {
  using Apply = void (*)(const float* a, std::size_t a_stride, const float* b, std::size_t b_stride,
                         std::size_t rows, std::size_t columns, float* y, std::size_t y_stride);

  template <Combination C>
  static void apply(const float* a, std::size_t a_stride, const float* b, std::size_t b_stride,
                    std::size_t rows, std::size_t columns, float* y, std::size_t y_stride) {
    for (std::size_t r = 0; r < rows; ++r, a += a_stride, b += b_stride, y += y_stride) {
      std::size_t c = 0;
      for (; c + V::kLanes <= columns; c += V::kLanes) {
        V::store(y + c, Math<V>::template combine<C>(V::load(a + c), V::load(b + c)));
      }
      if (c < columns) {
        const auto last =
            Math<V>::template combine<C>(Tail<V>::load(a, c, columns), Tail<V>::load(b, c, columns));
        Tail<V>::store(y, c, columns, last);
      }
    }
  }

  static Apply of(Combination c) { return pick(c, std::make_integer_sequence<int, kCombinations>{}); }

 private:
  template <int... I>
  static Apply pick(Combination c, std::integer_sequence<int, I...>) {
    static constexpr Apply all[] = {apply<static_cast<Combination>(I)>...};
    return all[static_cast<int>(c)];
  }
};

template <class V>
struct RowOps {
  static void run(const RowOp& op, const RowCall& call) {
    const bool normed = op.kind >= RowKind::kAffine && op.kind <= RowKind::kL2Norm;
    const bool relu = normed && op.then.activation == Activation::kRelu;  // which norms apply themselves
    const bool function = !relu && !op.then.is_identity();
    const typename NormRow<V>::Finish finish{op.weight, op.bias, relu ? 0.0f : -__builtin_inff()};
    for (std::size_t r = 0; r < call.rows; ++r) {
      const float* const x = call.x + r * call.x_stride;
      float* const y = call.y + r * call.y_stride;
      const float* const other = call.other + r * call.other_stride;
      const float* const done = op.kind >= RowKind::kWhere
                                    ? GroupOps<V>::run(op, x, other, call.third + r * call.third_stride, y)
                                    : run_kind(op, finish, x, other, y);
      if (function) {
        TileActivation<V>::run(op.then, done, y, op.width);
      } else if (done != y) {
        __builtin_memmove(y, done, op.width * sizeof(float));
      }
    }
  }

 private:
  // Where the result is: in y, or still in x if there was nothing to do.
  static const float* run_kind(const RowOp& op, const typename NormRow<V>::Finish& finish, const float* x,
                               const float* other, float* y) {
    const std::size_t n = op.width;
    switch (op.kind) {
      case RowKind::kMap:
        return x;
      case RowKind::kCombine:
        Combining<V>::of(op.combination)(x, 0, other, 0, 1, n, y, 0);
        break;
      case RowKind::kAffine:
        NormRow<V>::template scale<false>(x, y, n, 0.0f, 1.0f, finish);
        break;
      case RowKind::kLayerNorm:
        NormRow<V>::layer(x, y, n, op.eps, finish);
        break;
      case RowKind::kRmsNorm:
        NormRow<V>::rms(x, y, n, op.eps, finish);
        break;
      case RowKind::kL2Norm:
        NormRow<V>::l2(x, y, n, op.eps, finish);
        break;
      case RowKind::kSoftmax:
        Softmax<V>::run(x, y, n, false);
        break;
      case RowKind::kLogSoftmax:
        Softmax<V>::run(x, y, n, true);
        break;
      default:
        break;
    }
    return y;
  }
};

}  // namespace fused_mlp
