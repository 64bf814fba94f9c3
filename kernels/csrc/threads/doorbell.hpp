// SPDX-License-Identifier: Apache-2.0
// Wakes one thread. The thread waits for a number that it has not seen yet; others ring with a new number. A
// system call is made only if the thread sleeps.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "threads/spin.hpp"

namespace fused_mlp {

class Doorbell {
 public:
  // From any thread. Numbers have 31 bits; the first is not 0.
  void ring(std::uint32_t number) noexcept {
    if ((word_.exchange(number << 1, std::memory_order_release) & kAsleep) != 0) wake();
  }

  // From the owner only. Returns the last number rung, once it is another than `seen` (at first 0), and
  // whether the owner slept until then.
  struct Ring {
    std::uint32_t number;
    bool slept;
  };
  Ring wait(std::uint32_t seen, int spins) noexcept {
    bool slept = false;
    const std::uint32_t quiet = seen << 1;
    std::uint32_t now = word_.load(std::memory_order_acquire);
    for (int i = 0; i < spins && now == quiet; ++i) {
      pause_cpu();
      now = word_.load(std::memory_order_acquire);
    }
    while ((now & ~kAsleep) == quiet) {
      if (now == quiet && !word_.compare_exchange_strong(now, quiet | kAsleep, std::memory_order_acquire))
        continue;
      sleep(quiet | kAsleep);
      slept = true;
      now = word_.load(std::memory_order_acquire);
    }
    return {now >> 1, slept};
  }

 private:
  static constexpr std::uint32_t kAsleep = 1;

  // std::atomic's own wait and notify spin, yield and share their state with other variables.
#if defined(__linux__)
  void wake() noexcept { (void)syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }
  void sleep(std::uint32_t value) noexcept {
    (void)syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
  }
#else
  void wake() noexcept { word_.notify_one(); }
  void sleep(std::uint32_t value) noexcept { word_.wait(value, std::memory_order_acquire); }
#endif

  std::atomic<std::uint32_t> word_{0};  // the number, and in bit 0 whether the owner sleeps
};

}  // namespace fused_mlp
