// SPDX-License-Identifier: Apache-2.0
// The table of one instruction set. Each of avx2.cpp, avx512.cpp and portable.cpp makes its own, for its own
// vector type V and dot products D: only those files are built with the flags of an instruction set (see
// CMakeLists.txt).
#pragma once

#include "isa/isa.hpp"
#include "profile/probe_loops.hpp"
#include "tile/int8_product.hpp"
#include "tile/layer.hpp"
#include "tile/lookup.hpp"
#include "tile/microkernel.hpp"
#include "tile/quantize.hpp"
#include "tile/row_op.hpp"
#include "tile/tile_activation.hpp"

namespace fused_mlp {

template <class V, class D>
constexpr Isa isa_table(const char* name) {
  using Float32 = Layer<V, FloatProduct<V, Float32Weights<V>>>;
  using Bfloat16 = Layer<V, FloatProduct<V, Bfloat16Weights<V>>>;
  using Int8 = Layer<V, Int8Product<V, D>>;
  return {
      .name = name,
      .panel = Float32::kPanel,
      .max_rows = V::kMaxRows,
      .group = D::kGroup,
      .offset = D::kOffset,
      .int8_speed = D::kSpeed,
      .run_layer = {Float32::run, Bfloat16::run, Int8::run},
      .run_rows = RowOps<V>::run,
      .run_lookups = Lookups<V>::run,
      .apply = TileActivation<V>::run,
      .run_layer_timed = {Float32::run_timed, Bfloat16::run_timed, Int8::run_timed},
      .quantize = Quantize<V, D>::run,
      .multiply_add = ProbeLoops<V>::multiply_add,
      .multiply_add_int8 = Int8Probe<D>::multiply_add,
      .read = ProbeLoops<V>::read,
  };
}

}  // namespace fused_mlp
