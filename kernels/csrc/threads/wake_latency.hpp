// SPDX-License-Identifier: Apache-2.0
// How long helpers of the pool that sleep take to wake, as its own jobs show: the running median. It depends
// on how deep the cores sleep, and so on the rate of requests and on what else the machine does; the
// measurement at load sees only that moment.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace fused_mlp {

class WakeLatency {
 public:
  // From any thread. Concurrent records may be lost, which an estimate can bear.
  void record(std::int64_t ns) noexcept {
    const double sample = static_cast<double>(ns) * 1e-3, before = us();
    const double after = before == 0 ? sample : sample > before ? before * kStep : before / kStep;
    us_.store(std::clamp(after, kMinUs, kMaxUs), std::memory_order_relaxed);
  }
  double us() const noexcept { return us_.load(std::memory_order_relaxed); }  // 0: none yet

  // Whether a helper that must run within so many microseconds is worth waking. If most are not, one in
  // kTrial is woken anyway: otherwise nothing would show that waking has become cheaper.
  bool worth_waking(double within_us) noexcept {
    return us() <= within_us || skipped_.fetch_add(1, std::memory_order_relaxed) % kTrial == kTrial - 1;
  }
  static constexpr unsigned kTrial = 256;

 private:
  static constexpr double kStep = 1.125, kMinUs = 1.0, kMaxUs = 50.0;
  std::atomic<double> us_{0};
  std::atomic<unsigned> skipped_{0};
};

// When a thread was woken: by the first ring that it has not answered. Later ones, of a burst that has begun
// meanwhile, do not make its way shorter.
class WakeTimer {
 public:
  // Before the bell is rung, by one thread at a time.
  void rung(std::int64_t now) noexcept {
    if (since_.load(std::memory_order_relaxed) == kNotTimed) since_.store(now, std::memory_order_relaxed);
  }
  // By the thread that was woken: since when, or kNotTimed.
  std::int64_t answered() noexcept { return since_.exchange(kNotTimed, std::memory_order_relaxed); }
  static constexpr std::int64_t kNotTimed = 0;

 private:
  std::atomic<std::int64_t> since_{kNotTimed};
};

}  // namespace fused_mlp
