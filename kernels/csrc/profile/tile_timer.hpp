// SPDX-License-Identifier: Apache-2.0
// Measures the parts of a layer call, tile by tile (TileTimes in isa.hpp). NoTimer compiles to nothing.
#pragma once

#include "isa/isa.hpp"
#include "profile/ticks.hpp"

namespace fused_mlp {

struct NoTimer {
  void begin() {}
  void end_product() {}
  void end_epilogue() {}
};

class TileTimer {
 public:
  explicit TileTimer(TileTimes* times) : times_(*times) {}
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

}  // namespace fused_mlp
