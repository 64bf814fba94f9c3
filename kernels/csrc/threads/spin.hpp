// SPDX-License-Identifier: Apache-2.0
// Waiting that begins with a short spin: the event is usually closer than a futex wake-up.
#pragma once

#include <atomic>

namespace fused_mlp {

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// About 30 us: longer than the gap between two batches of a busy server.
inline constexpr int kSpins = 1000;

// Returns once value != old. After the spin it sleeps in std::atomic::wait (a futex).
template <class T>
T wait_while_equal(const std::atomic<T>& value, T old, int spins = kSpins) {
  for (int i = 0; i < spins; ++i) {
    const T now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    pause_cpu();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace fused_mlp
