// Packs a layer's weights, (out, in) row-major as in PyTorch, into the kernel's panels, once at load.
#pragma once

#include <cstddef>

#include "isa/isa.hpp"
#include "model/float_buffer.hpp"

namespace fused_mlp {

// Arrays owned by the caller; weight is required, the others may be null.
struct LayerSource {
  const float* weight;       // (out, in)
  const float* bias;         // (out,)
  const float* gate_weight;  // (out, in), for a gated layer
  const float* gate_bias;    // (out,)
  std::size_t in;
  std::size_t out;
};

struct LayerStorage {
  FloatBuffer weights;
  FloatBuffer bias;
  PackedLayer packed;
};

LayerStorage pack_layer(const LayerSource& source, std::size_t panel);

}  // namespace fused_mlp
