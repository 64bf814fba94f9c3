// From a layer as PyTorch stores it, (out, in) row-major, to the panels a kernel streams. Runs once, at load.
#pragma once

#include <cstddef>

#include "activation.hpp"
#include "float_buffer.hpp"
#include "isa.hpp"

namespace fused_mlp {

// Borrowed arrays; the null ones are absent.
struct LayerSource {
  const float* weight;       // (out, in)
  const float* bias;         // (out,)
  const float* gate_weight;  // (out, in), of a gated layer
  const float* gate_bias;    // (out,)
  std::size_t in;
  std::size_t out;
  Activation activation;
  float negative_slope;
};

struct LayerStorage {
  FloatBuffer weights;
  FloatBuffer bias;
  PackedLayer packed;
};

LayerStorage pack_layer(const LayerSource& source, std::size_t panel);

}  // namespace fused_mlp
