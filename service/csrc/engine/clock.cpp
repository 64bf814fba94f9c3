// SPDX-License-Identifier: Apache-2.0
#include "engine/clock.hpp"

#include <time.h>

#include <algorithm>
#include <chrono>

namespace fused_mlp {

using Steady = std::chrono::steady_clock;

Nanos SteadyClock::now() const noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Steady::now().time_since_epoch()).count();
}

Nanos SteadyClock::thread_cpu() const noexcept {
  timespec spent{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return Nanos{spent.tv_sec} * 1'000'000'000 + spent.tv_nsec;
}

void SteadyClock::wait_until(std::condition_variable& cv, std::unique_lock<std::mutex>& lock,
                             Nanos deadline) {
  if (deadline == 0) {
    cv.wait(lock);
  } else {
    cv.wait_until(lock, Steady::time_point(std::chrono::nanoseconds(deadline)));
  }
}

void ManualClock::wait_until(std::condition_variable& cv, std::unique_lock<std::mutex>& lock,
                             Nanos deadline) {
  // advance() calls the subscriber, which takes `lock` before it notifies: no advance is missed.
  if (deadline == 0 || now() < deadline) cv.wait(lock);
}

void ManualClock::subscribe(const void* subscriber, std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  subscribers_.push_back({subscriber, std::move(wake)});
}

void ManualClock::unsubscribe(const void* subscriber) {
  const std::lock_guard lock(mutex_);
  std::erase_if(subscribers_, [subscriber](const Subscriber& each) { return each.key == subscriber; });
}

void ManualClock::advance(Nanos by) {
  const std::lock_guard lock(mutex_);
  now_.fetch_add(by, std::memory_order_release);
  for (const Subscriber& subscriber : subscribers_) subscriber.wake();
}

}  // namespace fused_mlp
