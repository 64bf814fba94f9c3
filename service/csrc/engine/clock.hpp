// SPDX-License-Identifier: Apache-2.0
// The engine's clock: monotonic nanoseconds from an injectable source. The engine reads time only through it,
// so that tests control waits and deadlines without sleeping.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace fused_mlp {

// A point in time or a span, in nanoseconds. As a deadline, 0 means "none".
using Nanos = std::int64_t;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanos now() const noexcept = 0;
  // CPU time of the calling thread. Excludes the time it waited for a core.
  virtual Nanos thread_cpu() const noexcept = 0;
  // Waits on `cv` until notified or until `deadline` of this clock (0: only until notified). May wake
  // spuriously, like every wait on a condition variable: callers check their condition again.
  virtual void wait_until(std::condition_variable& cv, std::unique_lock<std::mutex>& lock,
                          Nanos deadline) = 0;

  // A manual clock calls `wake` after each advance. The system clock needs no subscribers and ignores both.
  virtual void subscribe(const void* /*subscriber*/, std::function<void()> /*wake*/) {}
  virtual void unsubscribe(const void* /*subscriber*/) {}
};

// CLOCK_MONOTONIC.
class SteadyClock final : public Clock {
 public:
  Nanos now() const noexcept override;
  Nanos thread_cpu() const noexcept override;
  void wait_until(std::condition_variable& cv, std::unique_lock<std::mutex>& lock, Nanos deadline) override;
};

// The one of the process.
inline const SteadyClock& steady_clock() {
  static const SteadyClock clock;
  return clock;
}

// A clock for tests: stands still until advanced. Thread-safe.
class ManualClock : public Clock {
 public:
  explicit ManualClock(Nanos start = 1'000'000'000) : now_(start) {}
  Nanos now() const noexcept override { return now_.load(std::memory_order_acquire); }
  Nanos thread_cpu() const noexcept override { return now(); }
  void wait_until(std::condition_variable& cv, std::unique_lock<std::mutex>& lock, Nanos deadline) override;
  void subscribe(const void* subscriber, std::function<void()> wake) override;
  void unsubscribe(const void* subscriber) override;
  void advance(Nanos by);

 private:
  struct Subscriber {
    const void* key;
    std::function<void()> wake;
  };
  std::atomic<Nanos> now_;
  std::mutex mutex_;
  std::vector<Subscriber> subscribers_;
};

}  // namespace fused_mlp
