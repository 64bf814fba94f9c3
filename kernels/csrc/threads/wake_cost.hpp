// SPDX-License-Identifier: Apache-2.0
// The cost of waking a thread that sleeps: depends on the processor, its idle states and the hypervisor.
#pragma once

namespace fused_mlp {

struct WakeCost {
  double latency_us;  // until the thread runs
  double cpu_us;      // of the waking thread and of the woken one, until it sleeps again
};

// Measured at the first call, which takes about 3 ms, most of it asleep.
const WakeCost& measured_wake_cost();

}  // namespace fused_mlp
