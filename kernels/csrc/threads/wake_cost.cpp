// SPDX-License-Identifier: Apache-2.0
#include "threads/wake_cost.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <ctime>
#include <system_error>
#include <thread>

#include "threads/doorbell.hpp"

namespace fused_mlp {

namespace {

using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::duration<double, std::micro>;

constexpr unsigned kSamples = 5;
// Between requests of an idle server a core enters an idle state, which it takes time to leave.
constexpr auto kIdle = std::chrono::microseconds(500);
// The smallest sample counts, and no more than this: a machine that is busy during the measurement must not
// keep helpers from this process for ever.
constexpr double kMinUs = 1.0;
constexpr double kMaxUs = 50.0;
constexpr WakeCost kUsual = {10.0, 10.0};

double thread_cpu_us() {
  timespec time{};
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

struct Sleeper {
  Doorbell bell;
  std::atomic<unsigned> woken{0};
  Clock::time_point woken_at;  // published by `woken`
  double cpu_us = 0;           // from the first wake-up to the last; read after the thread has ended

  void work() {
    double first = 0;
    for (std::uint32_t seen = 0; seen < kSamples;) {
      seen = bell.wait(seen, 0).number;
      woken_at = Clock::now();
      if (seen == 1) first = thread_cpu_us();
      if (seen == kSamples) cpu_us = thread_cpu_us() - first;
      woken.store(seen, std::memory_order_release);
    }
  }
};

WakeCost measure() {
  Sleeper sleeper;
  std::thread thread;
  try {
    thread = std::thread([&sleeper] { sleeper.work(); });
  } catch (const std::system_error&) {
    return kUsual;
  }
  std::array<double, kSamples> latency{}, ringing{};
  for (unsigned i = 0; i < kSamples; ++i) {
    std::this_thread::sleep_for(kIdle);
    const auto start = Clock::now();
    sleeper.bell.ring(i + 1);
    ringing[i] = Microseconds(Clock::now() - start).count();
    while (sleeper.woken.load(std::memory_order_acquire) <= i) std::this_thread::yield();
    latency[i] = Microseconds(sleeper.woken_at - start).count();
  }
  thread.join();
  std::sort(latency.begin(), latency.end());
  std::sort(ringing.begin(), ringing.end());
  const double cpu = ringing[kSamples / 2] + sleeper.cpu_us / (kSamples - 1);
  return {std::clamp(latency[kSamples / 2], kMinUs, kMaxUs), std::clamp(cpu, kMinUs, kMaxUs)};
}

}  // namespace

const WakeCost& measured_wake_cost() {
  static const WakeCost cost = measure();
  return cost;
}

}  // namespace fused_mlp
