// SPDX-License-Identifier: Apache-2.0
// How long one connection may keep its loop busy before the others have their turn. A few bytes on the wire
// can cost milliseconds (HPACK references, gzip, empty messages), so a visit is bounded by time. Loop thread
// only.
#pragma once

#include <cstdint>

#include "engine/clock.hpp"

namespace fused_mlp::front {

class Turn {
 public:
  static constexpr int64_t kVisit_ns = 250'000;

  explicit Turn(const Clock& clock) : clock_(clock) {}
  void begin(int64_t now_ns) {
    end_ns_ = now_ns + kVisit_ns;
    steps_ = 0;
  }
  bool over() const { return clock_.now() >= end_ns_; }
  // The same after a small step (a header field, a message): only some of them read the clock.
  bool over_after_step() { return (++steps_ % kStepsPerLook) == 0 && over(); }

 private:
  static constexpr uint32_t kStepsPerLook = 32;
  const Clock& clock_;
  int64_t end_ns_ = 0;
  uint32_t steps_ = 0;
};

}  // namespace fused_mlp::front
