// SPDX-License-Identifier: Apache-2.0
// The register tile of float32 sums: R rows times N registers of columns (whole panels, or half of one),
// summed over all of K in the order defined by kSumBlock (isa.hpp). Every strategy uses these tiles, so every
// strategy rounds in the same way; weights that are kept in bfloat16 are widened as they are loaded, and are
// summed in the same order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/isa.hpp"
#include "tile/add_products.hpp"

namespace fused_mlp {

// [panels][in][panel width]
template <class V>
struct Float32Weights {
  using Element = float;
  static constexpr std::size_t kDepth = 1;  // values of K that lie side by side, for each column
  template <int Depth>
  static typename V::Reg load(const float* p) {
    return V::load(p);
  }
};

// [panels][in / 2][panel width][2]: one register holds two values of K, which a shift and a mask take apart.
template <class V>
struct Bfloat16Weights {
  using Element = std::uint16_t;
  static constexpr std::size_t kDepth = 2;
  template <int Depth>
  static typename V::Reg load(const std::uint16_t* p) {
    return Depth == 0 ? V::load_low_halves(p) : V::load_high_halves(p);
  }
};

template <class V, class W>
struct FloatProduct {
  using Reg = typename V::Reg;
  using Element = typename W::Element;
  static constexpr std::size_t kPanel = std::size_t{V::kLanes} * V::kVectors;
  static constexpr std::size_t kRow = kPanel * W::kDepth;  // elements of a panel row
  static constexpr std::size_t kLine = 64 / sizeof(Element);
  // 32 KiB ahead, into the L2 cache: enough to stream weights from memory at the full speed of FMA. 8 KiB, or
  // prefetching into the L1 cache, is not.
  static constexpr std::size_t kPrefetch = 32768 / sizeof(Element);
  static constexpr bool kReadsOutput = true;  // adds every block of the sum to it
  static constexpr int kMaxRows = V::kMaxRows;
  static constexpr int panels_at_once(int rows) { return V::panels_at_once(rows); }

  struct Tile {
    const float* x;  // (R, x_stride)
    std::size_t x_stride;
    const Element* weights;    // the first panel; the others follow at panel_stride
    std::size_t panel_stride;  // in elements
    const float* bias;
    float* y;  // (R, y_stride): max(floor, x W + bias), N registers
    std::size_t y_stride;
    std::size_t in;
    std::size_t prefetch;    // prefetch distance, in elements
    float floor;             // 0 for relu, else -infinity; max() passes NaN through
    bool continues = false;  // adds to y, not to the bias
  };

  // The products of some columns of x.
  static Tile part(const Tile& tile, std::size_t first, std::size_t count) {
    Tile piece = tile;
    piece.x += first;
    piece.weights += first / W::kDepth * kRow;
    piece.in = count;
    return piece;
  }
  // y, or the bias where y is not begun, + sum.
  static void add_sum(const Tile& t, std::size_t rows, std::size_t width, const float* sum) {
    for (std::size_t r = 0; r < rows; ++r) {
      float* const y = t.y + r * t.y_stride;
      for (std::size_t c = 0; c < width; c += V::kLanes) {
        Reg value = V::load((t.continues ? y : t.bias) + c);
        if (sum != nullptr) value = value + V::load(sum + c);
        V::store(y + c, V::max(V::set1(t.floor), value));
      }
    }
  }

  static Tile tile(const PackedLayer& layer, const LayerCall& call, std::size_t row, std::size_t panel,
                   float* y, std::size_t y_stride, float floor) {
    const std::size_t panel_stride = (layer.in + W::kDepth - 1) / W::kDepth * kRow;
    return {.x = call.x + row * call.x_stride,
            .x_stride = call.x_stride,
            .weights = static_cast<const Element*>(layer.weights) + panel * panel_stride,
            .panel_stride = panel_stride,
            .bias = layer.bias + panel * kPanel,
            .y = y,
            .y_stride = y_stride,
            .in = layer.in,
            .prefetch = row == 0 ? kPrefetch : 0,  // for later rows the panel is in the cache
            .floor = floor};
  }

  // How many panels all rows use before the next ones: as many as the last and smallest tile spans.
  static int panels_together(const PackedLayer& layer, std::size_t rows, std::size_t smallest) {
    if (rows == 1) {
      // Fewer panels leave room for several blocks of the sum, which is faster for cached weights.
      const int most = panels_at_once(1);
      return layer.streamed || layer.in < 2 * kSumBlock ? most : (most + 1) / 2;
    }
    if (layer.streamed && rows == 3)
      return 1;  // one prefetched stream from memory; two rows gain nothing from it
    return panels_at_once(static_cast<int>(smallest));
  }

  template <int R, int N>
  struct Accumulator {
    Reg sum[R][N];

    [[gnu::always_inline]] void clear() {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < N; ++v) sum[r][v] = V::zero();
      }
    }

    template <int Depth>
    static Reg load(const Element* w, std::size_t panel_stride, int v) {
      return W::template load<Depth>(w + static_cast<std::size_t>(v / V::kVectors) * panel_stride +
                                     static_cast<std::size_t>(v % V::kVectors) * V::kLanes * W::kDepth);
    }

    // Adds one product to every sum: x[0] of each row times the first row of each panel, or its part.
    template <int Depth>
    [[gnu::always_inline]] void step(const float* x, std::size_t x_stride, const Element* w,
                                     std::size_t panel_stride) {
      add_products(
          sum, [&](int r) { return V::broadcast(x + static_cast<std::size_t>(r) * x_stride); },
          [&](int v) {
            Reg weight = load<Depth>(w, panel_stride, v);
            if constexpr (R == 2 || R == 3) V::pin(weight);
            return weight;
          },
          [](Reg total, Reg in, Reg weight) { return V::multiply_add(in, weight, total); });
    }

    // All of a panel row.
    [[gnu::always_inline]] void steps(const float* x, std::size_t x_stride, const Element* w,
                                      std::size_t panel_stride) {
      step<0>(x, x_stride, w, panel_stride);
      if constexpr (W::kDepth == 2) step<1>(x + 1, x_stride, w, panel_stride);
    }

    // Adds the block sums to the bias (first block) or to y (later blocks).
    [[gnu::always_inline]] void finish(const Tile& t, bool first, bool last) {
      const Reg floor = V::set1(t.floor);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        float* y = t.y + static_cast<std::size_t>(r) * t.y_stride;
#pragma GCC unroll 16
        for (int v = 0; v < N; ++v) {
          const Reg value = V::load((first ? t.bias : y) + v * V::kLanes) + sum[r][v];
          V::store(y + v * V::kLanes, last ? V::max(floor, value) : value);
        }
      }
    }
  };

  // How many blocks of the sum are computed at once. A tile with few sums cannot hide the latency of FMA, but
  // blocks are independent until they are added, in order.
  static constexpr int blocks_at_once(int rows, int registers) {
    const int sums = rows * registers;
    return sums <= 2 ? 4 : sums <= 6 ? 2 : 1;
  }

  // Sums groups of B blocks of K, then the remaining blocks in smaller groups, then the last partial block.
  template <int R, int N, int B>
  [[gnu::always_inline]] static void sum_blocks(const Tile& t, const float* x, const Element* w,
                                                std::size_t left, bool first) {
    using Sums = Accumulator<R, N>;
    constexpr std::size_t kBlock = kSumBlock * kPanel;  // elements of a panel
    while (left >= B * kSumBlock) {
      Sums sums[B];
#pragma GCC unroll 16
      for (int b = 0; b < B; ++b) sums[b].clear();
      for (std::size_t i = 0; i < kSumBlock; i += W::kDepth) {
        // Prefetch by software only for a single panel used by several rows, where the hardware prefetcher is
        // not far enough ahead. With several panels it is, and prefetch instructions would only cost time.
        if constexpr (N <= V::kVectors && R > 1) {
#pragma GCC unroll 16
          for (int b = 0; b < B; ++b) {
            const Element* const ahead = w + b * kBlock + t.prefetch;
#pragma GCC unroll 16
            for (std::size_t line = 0; line < N * V::kLanes * W::kDepth; line += kLine) {
              __builtin_prefetch(ahead + line, 0, 2);
            }
          }
        }
#pragma GCC unroll 16
        for (int b = 0; b < B; ++b) {
          sums[b].steps(x + b * kSumBlock, t.x_stride, w + b * kBlock, t.panel_stride);
        }
        x += W::kDepth;
        w += kRow;
      }
      left -= B * kSumBlock;
#pragma GCC unroll 16
      for (int b = 0; b < B; ++b) {
        sums[b].finish(t, first, left == 0 && b == B - 1);
        first = false;
      }
      x += (B - 1) * kSumBlock;
      w += (B - 1) * kBlock;
    }
    if constexpr (B > 1) {
      sum_blocks<R, N, B / 2>(t, x, w, left, first);
    } else if (left > 0) {
      Sums sums;
      sums.clear();
      for (; left >= W::kDepth; left -= W::kDepth) {
        sums.steps(x, t.x_stride, w, t.panel_stride);
        x += W::kDepth;
        w += kRow;
      }
      if (left > 0) sums.template step<0>(x, t.x_stride, w, t.panel_stride);  // of an odd number
      sums.finish(t, first, true);
    }
  }

  template <int R, int N>
  static void run(const Tile& tile) {
    const Tile t = tile;  // a local copy: the compiler knows that stores to y do not alias it
    sum_blocks<R, N, blocks_at_once(R, N)>(t, t.x, t.weights, t.in, !t.continues);
  }
};

}  // namespace fused_mlp
