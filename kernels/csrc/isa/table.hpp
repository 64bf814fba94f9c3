// The table of one instruction set. Each of avx2.cpp, avx512.cpp and portable.cpp makes its own, for its own
// vector type V: only those files are built with the flags of an instruction set (see CMakeLists.txt).
#pragma once

#include "isa/isa.hpp"
#include "profile/probe_loops.hpp"
#include "tile/layer.hpp"
#include "tile/row_op.hpp"
#include "tile/tile_activation.hpp"

namespace fused_mlp {

template <class V>
constexpr Isa isa_table(const char* name) {
  return {
      name,
      Layer<V>::kPanel,
      V::kMaxRows,
      Layer<V>::run,
      RowOps<V>::run,
      TileActivation<V>::run,
      Layer<V>::run_timed,
      ProbeLoops<V>::multiply_add,
      ProbeLoops<V>::read,
  };
}

}  // namespace fused_mlp
