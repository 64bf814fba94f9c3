// SPDX-License-Identifier: Apache-2.0
// One layer over a range of rows and panels: cuts them into register tiles and applies the activation while a
// tile is in the L1 cache. Instantiated per instruction set, and therefore uses no std:: functions: the
// linker keeps one copy of an inline function for the whole program, which must not be one compiled with
// -mavx2.
#pragma once

#include <cstddef>
#include <utility>

#include "isa/isa.hpp"
#include "profile/tile_timer.hpp"
#include "tile/row_op.hpp"
#include "tile/tile_activation.hpp"

namespace fused_mlp {

// `Product` computes register tiles: FloatProduct (microkernel.hpp) or Int8Product (int8_product.hpp).
template <class V, class Product>
struct Layer {
  static constexpr std::size_t kPanel = std::size_t{V::kLanes} * V::kVectors;
  static constexpr std::size_t kHalf = kPanel / 2;  // the last panel of a layer, if no more of it is needed
  static constexpr std::size_t kMaxRows = Product::kMaxRows;
  static constexpr std::size_t kFewRows = 3;  // tiles of up to this many rows span several panels
  using Activate = typename TileActivation<V>::Apply;
  using Tile = typename Product::Tile;
  using TileKernel = void (*)(const Tile&);

  static void run(const PackedLayer& layer, const LayerCall& call) { run_measured(layer, call, NoTimer()); }
  static void run_timed(const PackedLayer& layer, const LayerCall& call, TileTimes* times) {
    run_measured(layer, call, TileTimer(times));
  }

 private:
  template <class Timer>
  static void run_measured(const PackedLayer& layer, const LayerCall& call, Timer timer) {
    const Activation activation = layer.function.activation;
    Activate activate = nullptr;  // not needed for identity, nor for relu, which the register tile applies
    if (layer.gated || (activation != Activation::kIdentity && activation != Activation::kRelu)) {
      activate = TileActivation<V>::of(activation, layer.gated);
    }
    if (call.rows <= kFewRows && call.padded && !layer.gated) {
      // Few rows: finish the whole output at once, a single tile has too few independent operations.
      run_tiles<false>(layer, call, nullptr, timer);
      if (activate != nullptr || layer.epilogue != nullptr) {
        timer.begin();
        const std::size_t first = call.first * kPanel, written = (layer.out + kHalf - 1) / kHalf * kHalf;
        float* const y = call.y + first;
        const std::size_t columns = (call.last < layer.panels ? call.last * kPanel : written) - first;
        if (activate != nullptr) {
          activate(y, call.y_stride, call.rows, columns, y, call.y_stride, layer.function);
        }
        if (layer.epilogue != nullptr) finish(layer, call, 0, call.rows, first, columns, y, call.y_stride);
        timer.end_epilogue();
      }
    } else if (layer.epilogue != nullptr) {
      run_tiles<true>(layer, call, activate, timer);
    } else {
      run_tiles<false>(layer, call, activate, timer);
    }
  }

  // The epilogue of the tile at y, in place: whole registers, but of the other value only what is there.
  static void finish(const PackedLayer& layer, const LayerCall& call, std::size_t row, std::size_t rows,
                     std::size_t column, std::size_t columns, float* y, std::size_t stride) {
    const Epilogue& epilogue = *layer.epilogue;
    if (!epilogue.function.is_identity()) apply(epilogue.function, y, stride, rows, columns);
    if (epilogue.combined) {
      const float* const other = call.other + row * call.other_stride + column;
      const std::size_t there = column + columns <= layer.out ? columns : layer.out - column;
      const auto combine = Combining<V>::of(epilogue.combination);
      if (epilogue.swapped) {
        combine(other, call.other_stride, y, stride, rows, there, y, stride);
      } else {
        combine(y, stride, other, call.other_stride, rows, there, y, stride);
      }
    }
    if (!epilogue.then.is_identity()) apply(epilogue.then, y, stride, rows, columns);
  }
  static void apply(const Function& function, float* y, std::size_t stride, std::size_t rows,
                    std::size_t columns) {
    TileActivation<V>::of(function.activation, false)(y, stride, rows, columns, y, stride, function);
  }

  template <bool Finish, class Timer>
  static void run_tiles(const PackedLayer& layer, const LayerCall& call, Activate activate, Timer& timer) {
    const int together = panels_together(layer, call.rows);
    for (std::size_t panel = call.first; panel < call.last;) {
      int group = together;
      while (panel + static_cast<std::size_t>(group) > call.last) group /= 2;
      // All rows use these panels while they are in the cache.
      for (std::size_t row = 0; row < call.rows;) {
        const std::size_t rows = next_rows(call.rows - row);
        const int at_once = Product::panels_at_once(static_cast<int>(rows));
        const int step = at_once < group ? at_once : group;
        for (int p = 0; p < group; p += step) {
          run_tile_at<Finish>(layer, call, activate, row, rows, panel + static_cast<std::size_t>(p), step,
                              timer);
        }
        row += rows;
      }
      panel += static_cast<std::size_t>(group);
    }
  }

  // The rows of the next tile: full tiles, then the remainder. A remainder of one row would be inefficient,
  // so that with kMaxRows = 6, seven rows are cut into 4 + 3.
  static std::size_t next_rows(std::size_t left) {
    if (left == kMaxRows + 1) return kMaxRows - kMaxRows / 3;
    return left < kMaxRows ? left : kMaxRows;
  }

  static int panels_together(const PackedLayer& layer, std::size_t rows) {
    std::size_t smallest = rows;
    while (smallest > kMaxRows) smallest -= next_rows(smallest);
    return Product::panels_together(layer, rows, smallest);
  }

  template <bool Finish, class Timer>
  static void run_tile_at(const PackedLayer& layer, const LayerCall& call, Activate activate, std::size_t row,
                          std::size_t rows, std::size_t panel, int panels, Timer& timer) {
    alignas(64) float scratch[kMaxRows * kPanel * 4];
    const bool relu = layer.function.activation == Activation::kRelu && !layer.gated;
    const bool half = panels == 1 && layer.out <= panel * kPanel + kHalf && !layer.gated;
    const std::size_t width = half ? kHalf : static_cast<std::size_t>(panels) * kPanel;
    const std::size_t out_width = layer.gated ? width / 2 : width;
    const std::size_t out_column = layer.gated ? panel * kPanel / 2 : panel * kPanel;
    const bool whole = call.padded || out_column + out_width <= layer.out;
    const bool evicted = Product::kReadsOutput && rows > kCacheWays && call.y_stride % kAliasFloats == 0;
    const bool direct = whole && !layer.gated && !evicted;
    float* const out = call.y + row * call.y_stride + out_column;

    float* const y = direct ? out : scratch;
    const std::size_t y_stride = direct ? call.y_stride : width;
    const Tile tile = Product::tile(layer, call, row, panel, y, y_stride, relu ? 0.0f : -__builtin_inff());
    timer.begin();
    const TileKernel product = kernel(rows, half ? 0 : panels);
    if constexpr (Product::kReadsOutput) {
      call.start == nullptr ? product(tile) : run_parts(tile, call, rows, panel * kPanel, width, product);
    } else {
      product(tile);
    }
    timer.end_product();

    float* const target = whole ? out : scratch;
    const std::size_t target_stride = whole ? call.y_stride : width;
    if (activate != nullptr) {
      activate(y, y_stride, rows, width, target, target_stride, layer.function);
    } else if (y != target) {
      copy_rows(y, width, rows, width, target, target_stride);
    }
    if constexpr (Finish) finish(layer, call, row, rows, out_column, out_width, target, target_stride);
    if (!whole) copy_rows(scratch, width, rows, layer.out - out_column, out, call.y_stride);
    if (Finish || activate != nullptr || !whole) timer.end_epilogue();
  }

  static void run_parts(const Tile& whole, const LayerCall& call, std::size_t rows, std::size_t column,
                        std::size_t width, TileKernel product) {
    Tile tile = whole;
    tile.bias = call.start + column;
    if (call.part_count == 0) return Product::add_sum(tile, rows, width, nullptr);
    for (std::size_t i = 0; i < call.part_count; ++i) {
      const SumPart& part = call.parts[i];
      tile.floor = i + 1 == call.part_count ? whole.floor : -__builtin_inff();
      tile.continues = i > 0;
      if (part.count > 0) {
        product(Product::part(tile, part.first, part.count));
      } else {
        Product::add_sum(tile, rows, width, call.sums + part.sum + column);
      }
    }
  }

  static void copy_rows(const float* from, std::size_t from_stride, std::size_t rows, std::size_t columns,
                        float* to, std::size_t to_stride) {
    for (std::size_t r = 0; r < rows; ++r) {
      __builtin_memcpy(to + r * to_stride, from + r * from_stride, columns * sizeof(float));
    }
  }

  // 0 panels: half of one.
  static TileKernel kernel(std::size_t rows, int panels) {
    return kernel_of(rows, panels, std::make_integer_sequence<int, kMaxRows>{});
  }
  template <int... I>
  static TileKernel kernel_of(std::size_t rows, int panels, std::integer_sequence<int, I...>) {
    // Indexed by rows - 1. Tiles of few rows exist for 1, 2 and 4 panels, because fewer panels may be left.
    static constexpr TileKernel half[] = {Product::template run<I + 1, V::kVectors / 2>...};
    static constexpr TileKernel one[] = {Product::template run<I + 1, V::kVectors>...};
    static constexpr TileKernel two[] = {
        Product::template run<I + 1, V::kVectors*(Product::panels_at_once(I + 1) >= 2 ? 2 : 1)>...};
    static constexpr TileKernel four[] = {
        Product::template run<I + 1, V::kVectors*(Product::panels_at_once(I + 1) >= 4 ? 4 : 1)>...};
    return (panels == 0 ? half : panels == 4 ? four : panels == 2 ? two : one)[rows - 1];
  }
};

}  // namespace fused_mlp
