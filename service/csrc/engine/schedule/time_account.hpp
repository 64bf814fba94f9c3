// SPDX-License-Identifier: Apache-2.0
// The time that the lanes of one model have used together, on threads that all lanes share. Guarded by the
// scheduler's mutex, but for the weight.
#pragma once

#include <atomic>
#include <vector>

#include "engine/clock.hpp"

namespace fused_mlp {

struct Lane;

struct TimeAccount {
  void charge(Nanos time) noexcept {
    virtual_ns += static_cast<Nanos>(static_cast<double>(time) / weight.load(std::memory_order_relaxed));
  }

  std::atomic<double> weight{1};  // its share of the time, relative to others that have work
  Nanos virtual_ns = 0;           // time used, divided by the weight
  double counted_weight = 0;      // of ReadyLanes, while it has work
  std::vector<Lane*> ready;       // its lanes that have queued tickets
};

}  // namespace fused_mlp
