// SPDX-License-Identifier: Apache-2.0
// How long the threads of a benchmark wait for mutexes and hold them. lock_times.cpp replaces the functions
// of the C library behind std::mutex: what is measured is the code that ships.
#pragma once

#include <cstdint>

namespace fused_mlp::bench {

struct LockTimes {
  std::uint64_t locks = 0;
  double wait_ns = 0, hold_ns = 0;  // sums
  double hold_median_ns = 0, hold_p99_ns = 0;
  // Waits and holds of more than 50 us: a thread lost its core meanwhile. They are in no sum.
  std::uint64_t descheduled = 0;
};

// The times of all threads since the last call. No thread may hold a mutex meanwhile.
LockTimes collect_lock_times();

}  // namespace fused_mlp::bench
