// SPDX-License-Identifier: Apache-2.0
#include "model/pack.hpp"

#include <algorithm>
#include <cstdint>
#include <stdexcept>

namespace fused_mlp {

namespace {

// A panel: [in / depth][width][depth], of which rows of a matrix become columns.
template <class Element>
struct Panel {
  Element* data;
  std::size_t width;
  std::size_t depth;

  // panel[k / depth][first + j][k % depth] = weight[j][k]
  void fill(std::size_t first, std::size_t count, const Element* weight, std::size_t in) const {
    for (std::size_t j = 0; j < count; ++j) {
      const Element* const row = weight + j * in;
      Element* const column = data + (first + j) * depth;
      for (std::size_t k = 0; k < in; ++k) column[k / depth * depth * width + k % depth] = row[k];
    }
  }
};

std::size_t depth_of(Precision precision, const Isa& isa) {
  switch (precision) {
    case Precision::kFloat32:
      return 1;
    case Precision::kBfloat16:
      return 2;
    case Precision::kInt8:
      return isa.group;
  }
  return 1;
}

class Packer {
 public:
  Packer(const LayerSource& source, const Isa& isa)
      : source_(source),
        isa_(isa),
        gated_(source.gate_weight != nullptr),
        columns_(gated_ ? isa.panel / 2 : isa.panel),
        panels_((source.out + columns_ - 1) / columns_),
        depth_(depth_of(source.precision, isa)) {}

  LayerStorage pack() {
    switch (source_.precision) {
      case Precision::kFloat32:
        return pack_as<float>();
      case Precision::kBfloat16:
        return pack_as<std::uint16_t>();
      case Precision::kInt8:
        return pack_as<std::int8_t>();
    }
    throw std::invalid_argument("unknown precision");
  }

 private:
  template <class Element>
  LayerStorage pack_as() {
    const std::size_t rows = (source_.in + depth_ - 1) / depth_;  // of a panel
    const std::size_t row = depth_ * isa_.panel;                  // elements
    if (source_.in != 0 && panels_ > static_cast<std::size_t>(-1) / sizeof(float) / row / rows) {
      throw std::length_error("layer too large: its weights exceed the address space");
    }
    const std::size_t floats = (panels_ * rows * row * sizeof(Element) + sizeof(float) - 1) / sizeof(float);
    const bool int8 = source_.precision == Precision::kInt8;
    const std::size_t padded = panels_ * isa_.panel;
    LayerStorage layer{FloatBuffer(floats),
                       FloatBuffer(padded),
                       FloatBuffer(int8 ? padded : 0),
                       FloatBuffer(int8 ? padded : 0),
                       {}};
    auto* const weights = reinterpret_cast<Element*>(layer.weights.data());
    for (std::size_t p = 0; p < panels_; ++p) {
      const Panel<Element> panel{weights + p * rows * row, isa_.panel, depth_};
      const std::size_t up = p * isa_.panel + (gated_ ? columns_ : 0), gate = p * isa_.panel;
      fill(layer, panel, p, up, source_.weight, source_.bias, source_.scale);
      if (gated_) fill(layer, panel, p, gate, source_.gate_weight, source_.gate_bias, source_.gate_scale);
    }
    layer.packed = PackedLayer{.precision = source_.precision,
                               .weights = weights,
                               .bias = layer.bias.data(),
                               .scales = layer.scales.data(),
                               .starts = reinterpret_cast<const std::int32_t*>(layer.starts.data()),
                               .in = source_.in,
                               .out = source_.out,
                               .panels = panels_,
                               .function = {},
                               .gated = gated_,
                               .streamed = false,
                               .epilogue = nullptr};
    return layer;
  }

  // The rows of a matrix that belong to panel p, at `column` of the padded output.
  template <class Element>
  void fill(LayerStorage& layer, const Panel<Element>& panel, std::size_t p, std::size_t column,
            const void* weight, const float* bias, const float* scale) const {
    const std::size_t row = p * columns_;
    const std::size_t count = std::min(columns_, source_.out - row);
    const Element* const rows = static_cast<const Element*>(weight) + row * source_.in;
    panel.fill(column - p * isa_.panel, count, rows, source_.in);
    if (bias != nullptr) std::copy_n(bias + row, count, layer.bias.data() + column);
    if constexpr (sizeof(Element) == 1) {
      std::copy_n(scale + row, count, layer.scales.data() + column);
      auto* const starts = reinterpret_cast<std::int32_t*>(layer.starts.data()) + column;
      for (std::size_t j = 0; j < count; ++j) {
        std::int32_t sum = 0;
        for (std::size_t k = 0; k < source_.in; ++k) sum += rows[j * source_.in + k];
        // Modulo 2^32, as the sums themselves are: only their totals must fit.
        starts[j] = static_cast<std::int32_t>(0u - static_cast<std::uint32_t>(isa_.offset) *
                                                       static_cast<std::uint32_t>(sum));
      }
    }
  }

  const LayerSource& source_;
  const Isa& isa_;
  const bool gated_;
  const std::size_t columns_;  // output columns per panel
  const std::size_t panels_;
  const std::size_t depth_;  // values of K that lie side by side
};

}  // namespace

LayerStorage pack_layer(const LayerSource& source, const Isa& isa) {
  if (source.precision == Precision::kInt8) {
    if (source.in > kMaxInt8Inputs) throw std::invalid_argument("too many inputs for int8");
    if (source.scale == nullptr || (source.gate_weight != nullptr && source.gate_scale == nullptr)) {
      throw std::invalid_argument("int8 weights without scales");
    }
  }
  return Packer(source, isa).pack();
}

}  // namespace fused_mlp
