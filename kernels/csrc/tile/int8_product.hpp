// SPDX-License-Identifier: Apache-2.0
// The register tile of int8 products: R rows times N registers of columns (whole panels, or half of one).
// Sums are exact in int32, in any order, so that results are the same bits on every instruction set; they
// become float32 by the same three roundings everywhere: * weight scale, * row scale, + bias.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/isa.hpp"
#include "tile/add_products.hpp"

namespace fused_mlp {

// `D` multiplies (isa/dot_*.hpp). A group is what it multiplies at once, for each column: the 4 bytes of a
// row that are broadcast. Panels are [in / group][panel width][group].
template <class V, class D>
struct Int8Product {
  using Reg = typename V::Reg;
  using Sum = typename D::Sum;
  static constexpr std::size_t kPanel = std::size_t{V::kLanes} * V::kVectors;
  static constexpr std::size_t kVectorBytes = std::size_t{V::kLanes} * D::kGroup;
  static constexpr std::size_t kRowBytes = kPanel * D::kGroup;  // of a panel row
  static constexpr std::size_t kPrefetchBytes = 16384;          // ahead, into the L2 cache: see FloatProduct
  static constexpr bool kReadsOutput = false;
  static constexpr int kMaxRows = V::kMaxRows;
  // Sums in no order need no memory in between: more panels fit into 32 registers than for float32.
  static constexpr int panels_at_once(int rows) {
    if (V::kMaxRows < 12) return V::panels_at_once(rows);
    return rows <= 3 ? 4 : rows <= 6 ? 2 : 1;
  }

  struct Tile {
    const std::uint32_t* x;  // (R, x_stride) groups
    std::size_t x_stride;
    const float* row_scales;  // (R, x_stride)
    const std::int8_t* weights;
    std::size_t panel_bytes;
    const std::int32_t* starts;
    const float* scales;
    const float* bias;
    float* y;  // (R, y_stride): max(floor, x W + bias), N registers
    std::size_t y_stride;
    std::size_t groups;
    std::size_t prefetch;  // in bytes
    float floor;
  };

  static Tile tile(const PackedLayer& layer, const LayerCall& call, std::size_t row, std::size_t panel,
                   float* y, std::size_t y_stride, float floor) {
    const std::size_t groups = (layer.in + D::kGroup - 1) / D::kGroup;
    const float* const x = call.x + row * call.x_stride;
    return {.x = reinterpret_cast<const std::uint32_t*>(x + kQuantizedHeader),
            .x_stride = call.x_stride,
            .row_scales = x,
            .weights = static_cast<const std::int8_t*>(layer.weights) + panel * groups * kRowBytes,
            .panel_bytes = groups * kRowBytes,
            .starts = layer.starts + panel * kPanel,
            .scales = layer.scales + panel * kPanel,
            .bias = layer.bias + panel * kPanel,
            .y = y,
            .y_stride = y_stride,
            .groups = groups,
            .prefetch = row == 0 ? kPrefetchBytes : 0,
            .floor = floor};
  }

  static int panels_together(const PackedLayer&, std::size_t, std::size_t smallest) {
    return panels_at_once(static_cast<int>(smallest));
  }

  // Tiles with few sums cannot hide the latency of a dot product: they sum several groups at once.
  static constexpr int groups_at_once(int rows, int registers) {
    const int sums = rows * registers;
    return sums <= 2 ? 4 : sums <= 4 ? 2 : 1;
  }

  template <int R, int N>
  struct Accumulator {
    Sum sum[R][N];

    [[gnu::always_inline]] void start(const std::int32_t* starts) {
#pragma GCC unroll 16
      for (int v = 0; v < N; ++v) {
        const Sum first = starts != nullptr ? D::load_sum(starts + v * V::kLanes) : D::zero();
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) sum[r][v] = first;
      }
    }

    [[gnu::always_inline]] void step(const std::uint32_t* x, std::size_t x_stride, const std::int8_t* w,
                                     std::size_t panel_bytes) {
      add_products(
          sum, [&](int r) { return D::broadcast(x + static_cast<std::size_t>(r) * x_stride); },
          [&](int v) { return load(w, panel_bytes, v); },
          [](Sum total, typename D::Inputs in, typename D::Weights weight) {
            return D::dot(total, in, weight);
          });
    }

    static typename D::Weights load(const std::int8_t* w, std::size_t panel_bytes, int v) {
      return D::load(w + static_cast<std::size_t>(v / V::kVectors) * panel_bytes +
                     static_cast<std::size_t>(v % V::kVectors) * kVectorBytes);
    }

    [[gnu::always_inline]] void add(const Accumulator& other) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < N; ++v) sum[r][v] = D::add(sum[r][v], other.sum[r][v]);
      }
    }

    [[gnu::always_inline]] void finish(const Tile& t) {
      const Reg floor = V::set1(t.floor);
#pragma GCC unroll 16
      for (int v = 0; v < N; ++v) {
        const Reg scale = V::load(t.scales + v * V::kLanes), bias = V::load(t.bias + v * V::kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const Reg row_scale = V::broadcast(t.row_scales + static_cast<std::size_t>(r) * t.x_stride);
          const Reg value = D::to_float(sum[r][v]) * scale * row_scale + bias;
          V::store(t.y + static_cast<std::size_t>(r) * t.y_stride + v * V::kLanes, V::max(floor, value));
        }
      }
    }
  };

  template <int R, int N>
  static void run(const Tile& tile) {
    constexpr int B = groups_at_once(R, N);
    const Tile t = tile;  // a local copy: the compiler knows that stores to y do not alias it
    Accumulator<R, N> sums[B];
    sums[0].start(t.starts);
#pragma GCC unroll 4
    for (int b = 1; b < B; ++b) sums[b].start(nullptr);
    const std::uint32_t* x = t.x;
    const std::int8_t* w = t.weights;
    std::size_t left = t.groups;
    for (; left >= B; left -= B) {
      if constexpr (N <= V::kVectors && R > 1) {
#pragma GCC unroll 16
        for (std::size_t line = 0; line < B * kRowBytes; line += 64) {
          __builtin_prefetch(w + t.prefetch + line, 0, 2);
        }
      }
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) sums[b].step(x + b, t.x_stride, w + b * kRowBytes, t.panel_bytes);
      x += B;
      w += B * kRowBytes;
    }
    for (; left > 0; --left, ++x, w += kRowBytes) sums[0].step(x, t.x_stride, w, t.panel_bytes);
#pragma GCC unroll 4
    for (int b = 1; b < B; ++b) sums[0].add(sums[b]);
    sums[0].finish(t);
  }
};

}  // namespace fused_mlp
