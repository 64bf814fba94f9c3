// SPDX-License-Identifier: Apache-2.0
// Packs a layer's weights, (out, in) row-major as in PyTorch, into the kernel's panels, once at load.
#pragma once

#include <cstddef>

#include "isa/isa.hpp"
#include "model/float_buffer.hpp"

namespace fused_mlp {

// Arrays owned by the caller; weight is required, the others may be null.
struct LayerSource {
  const void* weight;       // (out, in): float, bfloat16 as uint16_t, or int8_t, which is never -128
  const float* bias;        // (out,)
  const void* gate_weight;  // (out, in), for a gated layer
  const float* gate_bias;   // (out,)
  std::size_t in;
  std::size_t out;
  Precision precision = Precision::kFloat32;
  const float* scale = nullptr;       // (out,), for int8
  const float* gate_scale = nullptr;  // (out,)
};

struct LayerStorage {
  FloatBuffer weights;
  FloatBuffer bias;
  FloatBuffer scales;
  FloatBuffer starts;  // integers
  PackedLayer packed;

  std::size_t floats() const { return weights.size() + bias.size() + scales.size() + starts.size(); }
};

// More products of int8 could overflow their sum.
inline constexpr std::size_t kMaxInt8Inputs = 131072;

LayerStorage pack_layer(const LayerSource& source, const Isa& isa);

}  // namespace fused_mlp
