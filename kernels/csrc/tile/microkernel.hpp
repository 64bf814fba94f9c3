// The register tile: R rows times P weight panels, summed over all of K in the order defined by kSumBlock
// (isa.hpp). Every strategy uses these tiles, so every strategy rounds in the same way.
#pragma once

#include <cstddef>

#include "isa/isa.hpp"

namespace fused_mlp {

struct Tile {
  const float* x;  // (R, x_stride)
  std::size_t x_stride;
  const float* weights;      // the first panel; the others follow at panel_stride
  std::size_t panel_stride;  // in floats
  const float* bias;
  float* y;  // (R, y_stride): max(floor, x W + bias), whole panels
  std::size_t y_stride;
  std::size_t in;
  std::size_t prefetch;  // prefetch distance, in floats
  float floor;           // 0 for relu, else -infinity; max() passes NaN through
};

template <class V, int R, int P>
struct Accumulator {
  using Reg = typename V::Reg;
  static constexpr int kRegs = P * V::kVectors;
  static constexpr std::size_t kPanel = std::size_t{V::kLanes} * V::kVectors;
  Reg sum[R][kRegs];

  [[gnu::always_inline]] void clear() {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kRegs; ++v) sum[r][v] = V::zero();
    }
  }

  static Reg load(const float* w, std::size_t panel_stride, int v) {
    return V::load(w + static_cast<std::size_t>(v / V::kVectors) * panel_stride +
                   static_cast<std::size_t>(v % V::kVectors) * V::kLanes);
  }

  // Adds one product to every sum: x[0] of each row times the first row of each panel.
  [[gnu::always_inline]] void step(const float* x, std::size_t x_stride, const float* w,
                                   std::size_t panel_stride) {
    if constexpr (R <= 3) {
      // Few rows, many columns: keep the inputs in registers and stream the weights.
      Reg in[R];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) in[r] = V::broadcast(x + static_cast<std::size_t>(r) * x_stride);
#pragma GCC unroll 16
      for (int v = 0; v < kRegs; ++v) {
        Reg weight = load(w, panel_stride, v);
        if constexpr (R > 1) V::pin(weight);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) sum[r][v] = V::fma(in[r], weight, sum[r][v]);
      }
    } else {
      Reg weight[kRegs];
#pragma GCC unroll 16
      for (int v = 0; v < kRegs; ++v) weight[v] = load(w, panel_stride, v);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Reg in = V::broadcast(x + static_cast<std::size_t>(r) * x_stride);
#pragma GCC unroll 16
        for (int v = 0; v < kRegs; ++v) sum[r][v] = V::fma(in, weight[v], sum[r][v]);
      }
    }
  }

  // Adds the block sums to the bias (first block) or to y (later blocks).
  [[gnu::always_inline]] void finish(const Tile& t, bool first, bool last) {
    const Reg floor = V::set1(t.floor);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      float* y = t.y + static_cast<std::size_t>(r) * t.y_stride;
#pragma GCC unroll 16
      for (int v = 0; v < kRegs; ++v) {
        const Reg value = V::load((first ? t.bias : y) + v * V::kLanes) + sum[r][v];
        V::store(y + v * V::kLanes, last ? V::max(floor, value) : value);
      }
    }
  }
};

// How many blocks of the sum are computed at once. A tile with few sums cannot hide the latency of FMA, but
// blocks are independent until they are added, in order.
template <class V>
constexpr int blocks_at_once(int rows, int panels) {
  const int sums = rows * panels * V::kVectors;
  return sums <= 2 ? 4 : sums <= 6 ? 2 : 1;
}

// Sums groups of B blocks of K, then the remaining blocks in smaller groups, then the last partial block.
template <class V, int R, int P, int B>
[[gnu::always_inline]] inline void sum_blocks(const Tile& t, const float* x, const float* w, std::size_t left,
                                              bool first) {
  using Sums = Accumulator<V, R, P>;
  while (left >= B * kSumBlock) {
    Sums sums[B];
#pragma GCC unroll 16
    for (int b = 0; b < B; ++b) sums[b].clear();
    for (std::size_t i = 0; i < kSumBlock; ++i) {
      // Prefetch by software only for a single panel used by several rows, where the hardware prefetcher is
      // not far enough ahead. With several panels it is, and prefetch instructions would only cost time.
      if constexpr (P == 1 && R > 1) {
#pragma GCC unroll 16
        for (int b = 0; b < B; ++b) {
          const float* const ahead = w + b * kSumBlock * Sums::kPanel + t.prefetch;
#pragma GCC unroll 16
          for (std::size_t line = 0; line < Sums::kPanel; line += kLineFloats) {
            __builtin_prefetch(ahead + line, 0, 2);
          }
        }
      }
#pragma GCC unroll 16
      for (int b = 0; b < B; ++b) {
        sums[b].step(x + b * kSumBlock, t.x_stride, w + b * kSumBlock * Sums::kPanel, t.panel_stride);
      }
      ++x;
      w += Sums::kPanel;
    }
    left -= B * kSumBlock;
#pragma GCC unroll 16
    for (int b = 0; b < B; ++b) {
      sums[b].finish(t, first, left == 0 && b == B - 1);
      first = false;
    }
    x += (B - 1) * kSumBlock;
    w += (B - 1) * kSumBlock * Sums::kPanel;
  }
  if constexpr (B > 1) {
    sum_blocks<V, R, P, B / 2>(t, x, w, left, first);
  } else if (left > 0) {
    Sums sums;
    sums.clear();
    for (; left > 0; --left) {
      sums.step(x, t.x_stride, w, t.panel_stride);
      ++x;
      w += Sums::kPanel;
    }
    sums.finish(t, first, true);
  }
}

template <class V, int R, int P>
void run_tile(const Tile& tile) {
  const Tile t = tile;  // a local copy: the compiler knows that stores to y do not alias it
  sum_blocks<V, R, P, blocks_at_once<V>(R, P)>(t, t.x, t.weights, t.in, true);
}

}  // namespace fused_mlp
