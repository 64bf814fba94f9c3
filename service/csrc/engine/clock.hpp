// Time as the engine sees it: monotonic nanoseconds from an injectable source. The engine never asks the
// system for the time by itself, so tests drive waiting and deadlines by hand, without sleeping.
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
  // What the calling thread has had of a core so far: a span of it leaves out the time spent waiting for one.
  virtual Nanos thread_cpu() const noexcept = 0;
  // Waits on `cv` until notified or until `deadline` of this clock (0: only until notified). Like every
  // wait on a condition variable it may wake for no reason: the caller looks again.
  virtual void wait_until(std::condition_variable& cv, std::unique_lock<std::mutex>& lock,
                          Nanos deadline) = 0;

  // For clocks whose time is moved by hand: call `wake` after each move. A real clock wakes sleepers by
  // itself and ignores both.
  virtual void subscribe(const void* /*who*/, std::function<void()> /*wake*/) {}
  virtual void unsubscribe(const void* /*who*/) {}
};

// CLOCK_MONOTONIC.
class SteadyClock final : public Clock {
 public:
  Nanos now() const noexcept override;
  Nanos thread_cpu() const noexcept override;
  void wait_until(std::condition_variable& cv, std::unique_lock<std::mutex>& lock, Nanos deadline) override;
};

// Stands still until advanced. Thread-safe.
class ManualClock : public Clock {
 public:
  explicit ManualClock(Nanos start = 1'000'000'000) : now_(start) {}
  Nanos now() const noexcept override { return now_.load(std::memory_order_acquire); }
  Nanos thread_cpu() const noexcept override { return now(); }
  void wait_until(std::condition_variable& cv, std::unique_lock<std::mutex>& lock, Nanos deadline) override;
  void subscribe(const void* who, std::function<void()> wake) override;
  void unsubscribe(const void* who) override;
  void advance(Nanos by);

 private:
  struct Subscriber {
    const void* who;
    std::function<void()> wake;
  };
  std::atomic<Nanos> now_;
  std::mutex mutex_;
  std::vector<Subscriber> subscribers_;
};

}  // namespace fused_mlp
