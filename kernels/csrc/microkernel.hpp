// The register tile: R rows times P weight panels, summed over the whole of K in the order that
// isa.hpp's kSumBlock fixes. Every path of the kernel ends here, so every path rounds alike.
#pragma once

#include <cstddef>

#include "isa.hpp"

namespace fused_mlp {

struct Tile {
  const float* x;  // (R, x_stride)
  std::size_t x_stride;
  const float* weights;      // the first panel; the next ones follow at panel_stride
  std::size_t panel_stride;  // in floats
  const float* bias;
  float* y;  // (R, y_stride): max(floor, x W + bias), whole panels
  std::size_t y_stride;
  std::size_t in;
  float floor;  // 0 for relu, else -infinity: max() passes NaN on
};

// Weights are read once and in order: asking this far ahead (in floats) covers the trip from memory.
inline constexpr std::size_t kPrefetchFloats = 16 * 16;

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

  // One product per sum: row r's x[k] times row k of each panel.
  [[gnu::always_inline]] void step(const float* x, std::size_t x_stride, const float* w,
                                   std::size_t panel_stride) {
    if constexpr (R <= 3) {
      // Few rows, many columns: hold the inputs, stream the weights.
      Reg in[R];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) in[r] = V::broadcast(x + static_cast<std::size_t>(r) * x_stride);
#pragma GCC unroll 16
      for (int v = 0; v < kRegs; ++v) {
        const Reg weight = V::load(w + static_cast<std::size_t>(v / V::kVectors) * panel_stride +
                                   static_cast<std::size_t>(v % V::kVectors) * V::kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) sum[r][v] = V::fma(in[r], weight, sum[r][v]);
      }
    } else {
      Reg weight[kRegs];
#pragma GCC unroll 16
      for (int v = 0; v < kRegs; ++v) {
        weight[v] = V::load(w + static_cast<std::size_t>(v / V::kVectors) * panel_stride +
                            static_cast<std::size_t>(v % V::kVectors) * V::kLanes);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Reg in = V::broadcast(x + static_cast<std::size_t>(r) * x_stride);
#pragma GCC unroll 16
        for (int v = 0; v < kRegs; ++v) sum[r][v] = V::fma(in, weight[v], sum[r][v]);
      }
    }
  }

  // Adds a finished block to what is summed so far: the bias before the first block, y afterwards.
  [[gnu::always_inline]] void finish_block(const Tile& t, bool first, bool last) {
    const Reg floor = V::set1(t.floor);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      float* y = t.y + static_cast<std::size_t>(r) * t.y_stride;
#pragma GCC unroll 16
      for (int v = 0; v < kRegs; ++v) {
        const float* total = first ? t.bias : y;
        const Reg value = V::load(total + v * V::kLanes) + sum[r][v];
        V::store(y + v * V::kLanes, last ? V::max(floor, value) : value);
      }
    }
  }
};

template <class V, int R, int P>
void run_tile(const Tile& t) {
  Accumulator<V, R, P> acc;
  constexpr std::size_t panel = Accumulator<V, R, P>::kPanel;
  const float* x = t.x;
  const float* w = t.weights;
  for (std::size_t k = 0; k < t.in; k += kSumBlock) {
    const std::size_t left = t.in - k;
    const std::size_t steps = left < kSumBlock ? left : kSumBlock;
    acc.clear();
    for (std::size_t i = 0; i < steps; ++i) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        __builtin_prefetch(w + static_cast<std::size_t>(p) * t.panel_stride + kPrefetchFloats);
      }
      acc.step(x, t.x_stride, w, t.panel_stride);
      ++x;
      w += panel;
    }
    acc.finish_block(t, k == 0, left <= kSumBlock);
  }
}

}  // namespace fused_mlp
