// SPDX-License-Identifier: Apache-2.0
// The number of threads of this process that are busy with requests. A kernel uses only the cores that they
// leave free: an idle server answers one request with all cores, a busy one does not oversubscribe them.
#pragma once

#include <atomic>
#include <limits>

namespace fused_mlp {

// Defined in process_state.cpp.
extern std::atomic<unsigned> busy_threads;
extern std::atomic<unsigned> usable_cores;  // by affinity and quota, as Python found them
extern constinit thread_local bool this_thread_busy;
extern constinit thread_local bool this_thread_low_priority;  // kernels on this thread use no other core
extern constinit thread_local bool this_thread_is_loop;       // it must not block

// Busy threads other than the calling one.
inline unsigned other_busy_threads() noexcept {
  if (this_thread_low_priority) return std::numeric_limits<unsigned>::max();
  return busy_threads.load(std::memory_order_relaxed) - (this_thread_busy ? 1 : 0);
}

inline bool a_core_is_free() noexcept {
  return busy_threads.load(std::memory_order_relaxed) < usable_cores.load(std::memory_order_relaxed);
}

// Counts the calling thread as busy during its lifetime.
class BusyScope {
 public:
  BusyScope() noexcept {
    this_thread_busy = true;
    busy_threads.fetch_add(1, std::memory_order_relaxed);
  }
  ~BusyScope() {
    busy_threads.fetch_sub(1, std::memory_order_relaxed);
    this_thread_busy = false;
  }
  BusyScope(const BusyScope&) = delete;
  BusyScope& operator=(const BusyScope&) = delete;
};

// While it lives, a busy thread waits for a device, most of the time asleep: it leaves its core to others.
class WaitingScope {
 public:
  WaitingScope() noexcept : was_busy_(this_thread_busy) {
    if (!was_busy_) return;
    this_thread_busy = false;
    busy_threads.fetch_sub(1, std::memory_order_relaxed);
  }
  ~WaitingScope() {
    if (!was_busy_) return;
    busy_threads.fetch_add(1, std::memory_order_relaxed);
    this_thread_busy = true;
  }
  WaitingScope(const WaitingScope&) = delete;
  WaitingScope& operator=(const WaitingScope&) = delete;

 private:
  const bool was_busy_;
};

}  // namespace fused_mlp
