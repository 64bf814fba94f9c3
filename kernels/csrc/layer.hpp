// One layer over some rows and some panels: cuts them into register tiles, and applies the activation while
// a tile is in the first level cache. Instantiated per instruction set, and therefore free of std::
// functions: an inline function compiled here with -mavx2 must never be the one the linker keeps for all.
#pragma once

#include <cstddef>
#include <utility>

#include "isa.hpp"
#include "microkernel.hpp"
#include "ticks.hpp"
#include "tile_activation.hpp"

namespace fused_mlp {

// Who watches the tiles of a layer: nobody, at no cost, or a clock.
struct Unwatched {
  void begin() {}
  void end_product() {}
  void end_epilogue() {}
};

class Watched {
 public:
  explicit Watched(TileTimes* times) : times_(*times) {}
  void begin() { last_ = ticks(); }
  void end_product() {
    times_.product += lap();
    ++times_.tiles;
  }
  void end_epilogue() { times_.epilogue += lap(); }

 private:
  unsigned long long lap() {
    const unsigned long long before = last_;
    last_ = ticks();
    return last_ - before;
  }
  TileTimes& times_;
  unsigned long long last_ = 0;
};

template <class V>
struct Layer {
  static constexpr std::size_t kPanel = std::size_t{V::kLanes} * V::kVectors;
  static constexpr std::size_t kFewRows = 3;  // tiles of so many rows work on several panels at once
  using Activate = typename TileActivation<V>::Function;
  using TileKernel = void (*)(const Tile&);

  static void run(const PackedLayer& layer, const LayerCall& call) { run_watched(layer, call, Unwatched()); }
  static void run_timed(const PackedLayer& layer, const LayerCall& call, TileTimes* times) {
    run_watched(layer, call, Watched(times));
  }

 private:
  template <class Watch>
  static void run_watched(const PackedLayer& layer, const LayerCall& call, Watch watch) {
    Activate activate = nullptr;  // relu is a floor of the register tile, identity nothing at all
    if (layer.gated || (layer.activation != Activation::kIdentity && layer.activation != Activation::kRelu)) {
      activate = TileActivation<V>::of(layer.activation, layer.gated);
    }
    if (call.rows <= kFewRows && call.padded && !layer.gated) {
      // A few rows are activated all at once: a single tile's worth would wait for itself.
      run_tiles(layer, call, nullptr, watch);
      if (activate != nullptr) {
        watch.begin();
        float* const y = call.y + call.first * kPanel;
        const std::size_t columns = (call.last - call.first) * kPanel;
        activate(y, call.y_stride, call.rows, columns, y, call.y_stride, layer.negative_slope);
        watch.end_epilogue();
      }
    } else {
      run_tiles(layer, call, activate, watch);
    }
  }

  template <class Watch>
  static void run_tiles(const PackedLayer& layer, const LayerCall& call, Activate activate, Watch& watch) {
    const int together = panels_together(layer, call.rows);
    for (std::size_t panel = call.first; panel < call.last;) {
      int group = together;
      while (panel + static_cast<std::size_t>(group) > call.last) group /= 2;
      // All rows pass while the panels are cached.
      for (std::size_t row = 0; row < call.rows;) {
        const std::size_t rows = next_rows(call.rows - row);
        const int at_once = V::panels_at_once(static_cast<int>(rows));
        const int step = at_once < group ? at_once : group;
        for (int p = 0; p < group; p += step) {
          run_tile_at(layer, call, activate, row, rows, panel + static_cast<std::size_t>(p), step, watch);
        }
        row += rows;
      }
      panel += static_cast<std::size_t>(group);
    }
  }

  // The rows of the next tile: whole tiles, then what is left. A last single row would waste most of a
  // tile, so seven rows are 4 + 3.
  static std::size_t next_rows(std::size_t left) {
    if (left == V::kMaxRows + 1) return V::kMaxRows - V::kMaxRows / 3;
    return left < V::kMaxRows ? left : V::kMaxRows;
  }

  // Panels that all rows pass before the next ones: as many as the smallest tile, the last, works on.
  static int panels_together(const PackedLayer& layer, std::size_t rows) {
    if (rows == 1) {
      // Several panels or several blocks of the sum: the latter read more evenly, unless from memory.
      const int most = V::panels_at_once(1);
      return layer.streamed || layer.in < 2 * kSumBlock ? most : (most + 1) / 2;
    }
    if (layer.streamed && rows == 3) return 1;  // one stream from memory, prefetched; no gain for two rows
    while (rows > V::kMaxRows) rows -= next_rows(rows);
    return V::panels_at_once(static_cast<int>(rows));
  }

  template <class Watch>
  static void run_tile_at(const PackedLayer& layer, const LayerCall& call, Activate activate, std::size_t row,
                          std::size_t rows, std::size_t panel, int panels, Watch& watch) {
    alignas(64) float scratch[V::kMaxRows * kPanel * 4];
    const bool relu = layer.activation == Activation::kRelu && !layer.gated;
    const std::size_t width = static_cast<std::size_t>(panels) * kPanel;
    const std::size_t out_width = layer.gated ? width / 2 : width;
    const std::size_t out_column = layer.gated ? panel * kPanel / 2 : panel * kPanel;
    const bool whole = call.padded || out_column + out_width <= layer.out;
    const bool direct = whole && !layer.gated;
    float* const out = call.y + row * call.y_stride + out_column;

    Tile tile;
    tile.x = call.x + row * call.x_stride;
    tile.x_stride = call.x_stride;
    tile.weights = layer.weights + panel * layer.in * kPanel;
    tile.panel_stride = layer.in * kPanel;
    tile.bias = layer.bias + panel * kPanel;
    tile.y = direct ? out : scratch;
    tile.y_stride = direct ? call.y_stride : width;
    tile.in = layer.in;
    tile.prefetch = row == 0 ? kPrefetchFloats : 0;  // the later rows find the panel cached
    tile.floor = relu ? 0.0f : -__builtin_inff();
    watch.begin();
    kernel(rows, panels)(tile);
    watch.end_product();

    if (activate != nullptr) {
      float* const target = whole ? out : scratch;
      activate(tile.y, tile.y_stride, rows, width, target, whole ? call.y_stride : width,
               layer.negative_slope);
    }
    if (!whole) {
      for (std::size_t r = 0; r < rows; ++r) {
        __builtin_memcpy(out + r * call.y_stride, scratch + r * width,
                         (layer.out - out_column) * sizeof(float));
      }
    }
    if (activate != nullptr || !whole) watch.end_epilogue();
  }

  // 32 KiB ahead, into the second level cache: far enough for memory, and enough to stream weights at the
  // full speed of multiply-add whatever their size (8 KiB, or the first level, is not).
  static constexpr std::size_t kPrefetchFloats = 8192;

  static TileKernel kernel(std::size_t rows, int panels) {
    return kernel_of(rows, panels, std::make_integer_sequence<int, V::kMaxRows>{});
  }
  template <int... I>
  static TileKernel kernel_of(std::size_t rows, int panels, std::integer_sequence<int, I...>) {
    // Row counts 1..kMaxRows; a tile of few rows comes in every number of panels it may be left with.
    static constexpr TileKernel one[] = {run_tile<V, I + 1, 1>...};
    static constexpr TileKernel two[] = {run_tile<V, I + 1, (V::panels_at_once(I + 1) >= 2 ? 2 : 1)>...};
    static constexpr TileKernel four[] = {run_tile<V, I + 1, (V::panels_at_once(I + 1) >= 4 ? 4 : 1)>...};
    return (panels == 4 ? four : panels == 2 ? two : one)[rows - 1];
  }
};

}  // namespace fused_mlp
