// SPDX-License-Identifier: Apache-2.0
// Functions over a tile in memory, gated or not, one loop per named function.
#pragma once

#include <cstddef>
#include <utility>

#include "tile/formula.hpp"

namespace fused_mlp {

template <class V>
struct TileActivation {
  using Reg = typename V::Reg;
  static constexpr std::size_t kPanel = std::size_t{V::kLanes} * V::kVectors;
  static constexpr std::size_t kMaxTile = V::kMaxRows * kPanel * 4;  // values of the largest tile

  // src (rows, columns) -> dst (rows, columns), or (rows, columns / 2) if gated. Whole registers.
  using Apply = void (*)(const float* src, std::size_t src_stride, std::size_t rows, std::size_t columns,
                         float* dst, std::size_t dst_stride, const Function& function);

  template <Activation A>
  static void plain(const float* src, std::size_t src_stride, std::size_t rows, std::size_t columns,
                    float* dst, std::size_t dst_stride, const Function& function) {
    const typename Math<V>::Parameters with(function.parameters);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; c += V::kLanes) {
        const Reg x = V::load(src + r * src_stride + c);
        V::store(dst + r * dst_stride + c, Math<V>::template apply<A>(x, with));
      }
    }
  }

  // The first half of each panel is the gate, the second half the up projection.
  template <Activation A>
  static void gated(const float* src, std::size_t src_stride, std::size_t rows, std::size_t columns,
                    float* dst, std::size_t dst_stride, const Function& function) {
    const typename Math<V>::Parameters with(function.parameters);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; c += kPanel) {
        for (std::size_t h = 0; h < kPanel / 2; h += V::kLanes) {
          const float* gate = src + r * src_stride + c + h;
          const Reg up = V::load(gate + kPanel / 2);
          V::store(dst + r * dst_stride + c / 2 + h, Math<V>::template apply<A>(V::load(gate), with) * up);
        }
      }
    }
  }

  static void plain_formula(const float* src, std::size_t src_stride, std::size_t rows, std::size_t columns,
                            float* dst, std::size_t dst_stride, const Function& function) {
    Formulas<V>::run(function, src, src_stride, rows, columns, dst, dst_stride);
  }

  static void gated_formula(const float* src, std::size_t src_stride, std::size_t rows, std::size_t columns,
                            float* dst, std::size_t dst_stride, const Function& function) {
    alignas(64) float tile[kMaxTile] = {};  // a copy whose gates are replaced by their function
    for (std::size_t r = 0; r < rows; ++r) {
      __builtin_memcpy(tile + r * columns, src + r * src_stride, columns * sizeof(float));
    }
    Formulas<V>::run(function, tile, kPanel, rows * columns / kPanel, kPanel / 2, tile, kPanel);
    gated<Activation::kIdentity>(tile, columns, rows, columns, dst, dst_stride, function);
  }

  static Apply of(Activation a, bool is_gated) {
    if (a == Activation::kFormula) return is_gated ? gated_formula : plain_formula;
    return pick(a, is_gated, std::make_integer_sequence<int, kPlainActivations>{});
  }

  // Applies the function to n contiguous values. The tail uses a whole register too: same rounding.
  static void run(const Function& function, const float* x, float* y, std::size_t n) {
    const Apply apply = of(function.activation, false);
    const std::size_t body = n / V::kLanes * V::kLanes;
    if (body > 0) apply(x, 0, 1, body, y, 0, function);
    if (body < n) {
      alignas(64) float tail[V::kLanes] = {};
      __builtin_memcpy(tail, x + body, (n - body) * sizeof(float));
      apply(tail, 0, 1, V::kLanes, tail, 0, function);
      __builtin_memcpy(y + body, tail, (n - body) * sizeof(float));
    }
  }

 private:
  template <int... I>
  static Apply pick(Activation a, bool is_gated, std::integer_sequence<int, I...>) {
    static constexpr Apply plains[] = {plain<static_cast<Activation>(I)>...};
    static constexpr Apply gates[] = {gated<static_cast<Activation>(I)>...};
    return (is_gated ? gates : plains)[static_cast<int>(a)];
  }
};

}  // namespace fused_mlp
