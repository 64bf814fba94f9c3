// One layer over some rows and some panels: cuts them into register tiles and applies the activation to
// each tile while it is in L1. Instantiated per instruction set, and therefore free of std:: functions:
// an inline function compiled here with -mavx2 must never be the one the linker keeps for everybody.
#pragma once

#include <cstddef>
#include <utility>

#include "activation_math.hpp"
#include "isa.hpp"
#include "microkernel.hpp"

namespace fused_mlp {

template <class V>
struct Layer {
  using Reg = typename V::Reg;
  static constexpr std::size_t kPanel = std::size_t{V::kLanes} * V::kVectors;
  static constexpr std::size_t kTileColumns = 4 * kPanel;

  // ---- activations of a tile: src (rows, src_stride) -> dst (rows, dst_stride) ----
  using TileFunction = void (*)(const float* src, std::size_t src_stride, std::size_t rows,
                                std::size_t columns, float* dst, std::size_t dst_stride,
                                float negative_slope);

  template <Activation A>
  static void activate_tile(const float* src, std::size_t src_stride, std::size_t rows, std::size_t columns,
                            float* dst, std::size_t dst_stride, float negative_slope) {
    const Reg slope = V::set1(negative_slope);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; c += V::kLanes) {
        V::store(dst + r * dst_stride + c,
                 Math<V>::template apply<A>(V::load(src + r * src_stride + c), slope));
      }
    }
  }

  // `columns` of the source, gate half and up half of each panel; half as many of the result.
  template <Activation A>
  static void gate_tile(const float* src, std::size_t src_stride, std::size_t rows, std::size_t columns,
                        float* dst, std::size_t dst_stride, float negative_slope) {
    const Reg slope = V::set1(negative_slope);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; c += kPanel) {
        for (std::size_t h = 0; h < kPanel / 2; h += V::kLanes) {
          const float* gate = src + r * src_stride + c + h;
          const Reg up = V::load(gate + kPanel / 2);
          V::store(dst + r * dst_stride + c / 2 + h, Math<V>::template apply<A>(V::load(gate), slope) * up);
        }
      }
    }
  }

  template <int... I>
  static TileFunction pick(Activation a, bool gated, std::integer_sequence<int, I...>) {
    static constexpr TileFunction plain[] = {activate_tile<static_cast<Activation>(I)>...};
    static constexpr TileFunction gate[] = {gate_tile<static_cast<Activation>(I)>...};
    return (gated ? gate : plain)[static_cast<int>(a)];
  }
  static TileFunction tile_function(Activation a, bool gated) {
    return pick(a, gated, std::make_integer_sequence<int, kElementwiseActivations>{});
  }

  // ---- register tiles ----
  // 32 KiB ahead, into the second level cache: far enough for memory, and enough to stream weights at the
  // full speed of multiply-add whatever their size (8 KiB, or the first level, is not).
  static constexpr std::size_t kPrefetchFloats = 8192;
  using TileKernel = void (*)(const Tile&);
  template <int... I>
  static TileKernel kernel_of(std::size_t rows, int panels, std::integer_sequence<int, I...>) {
    // Row counts 1..kMaxRows; a tile of few rows comes in every number of panels it may be left with.
    static constexpr TileKernel one[] = {run_tile<V, I + 1, 1>...};
    static constexpr TileKernel two[] = {run_tile < V, I + 1, V::panels_at_once(I + 1) >= 2 ? 2 : 1 > ...};
    static constexpr TileKernel four[] = {run_tile < V, I + 1, V::panels_at_once(I + 1) >= 4 ? 4 : 1 > ...};
    return (panels == 4 ? four : panels == 2 ? two : one)[rows - 1];
  }
  static TileKernel kernel(std::size_t rows, int panels) {
    return kernel_of(rows, panels, std::make_integer_sequence<int, V::kMaxRows>{});
  }

  // Rows in tiles as even as can be: 8 rows are 4 + 4, never 6 + 2. The larger tiles come first.
  struct Split {
    std::size_t tiles, rows, larger;  // `larger` of the tiles have one row more than `rows`
    explicit Split(std::size_t total)
        : tiles((total + V::kMaxRows - 1) / V::kMaxRows), rows(total / tiles), larger(total - rows * tiles) {}
    std::size_t operator[](std::size_t tile) const { return rows + (tile < larger ? 1 : 0); }
  };

  static void run_rows(const PackedLayer& layer, const LayerCall& call, TileFunction activate,
                       std::size_t row, std::size_t rows, std::size_t panel, int panels) {
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
    kernel(rows, panels)(tile);

    if (activate != nullptr) {
      float* target = whole ? out : scratch;
      const std::size_t target_stride = whole ? call.y_stride : width;
      activate(tile.y, tile.y_stride, rows, width, target, target_stride, layer.negative_slope);
    }
    if (!whole) {
      const std::size_t columns = layer.out - out_column;
      for (std::size_t r = 0; r < rows; ++r) {
        __builtin_memcpy(out + r * call.y_stride, scratch + r * width, columns * sizeof(float));
      }
    }
  }

  static void run(const PackedLayer& layer, const LayerCall& call) {
    const bool in_register =
        layer.activation == Activation::kIdentity || layer.activation == Activation::kRelu;
    const TileFunction activate =
        in_register && !layer.gated ? nullptr : tile_function(layer.activation, layer.gated);
    // The smallest tile sets how many panels go together; all rows pass while a panel is cached.
    const Split split(call.rows);
    const int together = V::panels_at_once(static_cast<int>(split.rows));
    for (std::size_t panel = call.first; panel < call.last;) {
      int group = together;
      while (panel + static_cast<std::size_t>(group) > call.last) group /= 2;
      for (std::size_t tile = 0, row = 0; tile < split.tiles; row += split[tile], ++tile) {
        const std::size_t rows = split[tile];
        const int at_once = V::panels_at_once(static_cast<int>(rows));
        const int step = at_once < group ? at_once : group;
        for (int p = 0; p < group; p += step) {
          run_rows(layer, call, activate, row, rows, panel + static_cast<std::size_t>(p), step);
        }
      }
      panel += static_cast<std::size_t>(group);
    }
  }

  // ---- whole rows ----
  static void activate(Activation a, float negative_slope, const float* x, float* y, std::size_t n) {
    const TileFunction function = tile_function(a, false);
    const std::size_t body = n / V::kLanes * V::kLanes;
    function(x, 0, 1, body, y, 0, negative_slope);
    if (body < n) {
      alignas(64) float tail[V::kLanes] = {};
      __builtin_memcpy(tail, x + body, (n - body) * sizeof(float));
      function(tail, 0, 1, V::kLanes, tail, 0, negative_slope);
      __builtin_memcpy(y + body, tail, (n - body) * sizeof(float));
    }
  }
};

}  // namespace fused_mlp
