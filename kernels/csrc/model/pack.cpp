#include "model/pack.hpp"

#include <algorithm>
#include <stdexcept>

namespace fused_mlp {

namespace {

// Copies `count` rows of `weight` to columns of a panel: panel[k][first + j] = weight[j][k].
void fill(float* panel, std::size_t width, std::size_t first, std::size_t count, const float* weight,
          std::size_t in) {
  for (std::size_t j = 0; j < count; ++j) {
    const float* row = weight + j * in;
    float* column = panel + first + j;
    for (std::size_t k = 0; k < in; ++k) column[k * width] = row[k];
  }
}

}  // namespace

LayerStorage pack_layer(const LayerSource& source, std::size_t panel) {
  const bool gated = source.gate_weight != nullptr;
  const std::size_t columns = gated ? panel / 2 : panel;  // output columns per panel
  const std::size_t panels = (source.out + columns - 1) / columns;
  const std::size_t limit = static_cast<std::size_t>(-1) / sizeof(float) / panel;
  if (source.in != 0 && panels > limit / source.in) {
    throw std::length_error("layer too large: its weights exceed the address space");
  }

  LayerStorage layer{FloatBuffer(panels * source.in * panel), FloatBuffer(panels * panel), {}};
  for (std::size_t p = 0; p < panels; ++p) {
    const std::size_t row = p * columns;
    const std::size_t count = std::min(columns, source.out - row);
    float* weights = layer.weights.data() + p * source.in * panel;
    float* bias = layer.bias.data() + p * panel;
    const std::size_t up = gated ? columns : 0;
    fill(weights, panel, up, count, source.weight + row * source.in, source.in);
    if (source.bias != nullptr) std::copy_n(source.bias + row, count, bias + up);
    if (gated) {
      fill(weights, panel, 0, count, source.gate_weight + row * source.in, source.in);
      if (source.gate_bias != nullptr) std::copy_n(source.gate_bias + row, count, bias);
    }
  }
  layer.packed = PackedLayer{.weights = layer.weights.data(),
                             .bias = layer.bias.data(),
                             .in = source.in,
                             .out = source.out,
                             .panels = panels,
                             .function = {},
                             .gated = gated,
                             .streamed = false,
                             .epilogue = nullptr};
  return layer;
}

}  // namespace fused_mlp
