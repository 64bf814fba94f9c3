// SPDX-License-Identifier: Apache-2.0
// A pool of helper threads for one job at a time. The caller works on its job too; helpers may join while it
// runs. The caller never waits for a helper that has not joined. It wakes two helpers, and each that joins
// wakes two more. Knows nothing of kernels.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <limits>
#include <mutex>
#include <thread>

#include "threads/doorbell.hpp"
#include "threads/turns.hpp"
#include "threads/wake_latency.hpp"

namespace fused_mlp {

class Pool {
 public:
  static constexpr unsigned kMaxThreads = 1024;  // far below what admission_ can count

  // A job distributes its own work, so that any number of participants (at least one) completes it.
  // `participant` is 0 for the caller and 1..helpers for the others.
  using Task = void (*)(void* job, unsigned participant);

  Pool() = default;
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Runs task(job, 0) on the calling thread and task(job, n) on up to `helpers` others that start in time.
  // Returns when all participants are done. While the pool runs another job, the caller works alone.
  void run(unsigned helpers, Task task, void* job);

  // Counts a caller while it computes, alone or with helpers, so that helpers are woken only for cores that
  // no caller uses.
  class CallerScope {
   public:
    explicit CallerScope(Pool& pool) noexcept
        : pool_(pool), others_(pool.callers_.fetch_add(1, std::memory_order_relaxed)) {}
    ~CallerScope() {
      if (timed_) pool_.last_end_.store(now(), std::memory_order_relaxed);
      pool_.callers_.fetch_sub(1, std::memory_order_relaxed);
    }
    CallerScope(const CallerScope&) = delete;
    CallerScope& operator=(const CallerScope&) = delete;
    // How many of `threads` are left by other callers and by `busy` other threads; at least 1. 1 during the
    // back-off after late wake-ups.
    unsigned free_threads(unsigned threads, unsigned busy) const noexcept {
      const unsigned others = busy > others_ ? busy : others_;
      if (others > 0) {
        if (!pool_.contended_.load(std::memory_order_relaxed))
          pool_.contended_.store(true, std::memory_order_relaxed);
      } else if (pool_.backing_off()) {
        return 1;
      }
      return threads > others ? threads - others : 1;
    }
    // Whether this call follows the last one so closely that helpers may spin in between: they cost little to
    // wake. After a longer gap they sleep. Only calls that ask are counted as calls.
    bool follows_closely() noexcept {
      timed_ = true;
      const bool close = now() - pool_.last_end_.load(std::memory_order_relaxed) < kCloseNs;
      pool_.spinning_pays_.store(close, std::memory_order_relaxed);
      return close;
    }
    // Whether to wake helpers that sleep for a job that gains by them if they run within that time.
    bool worth_waking(double within_us) const noexcept { return pool_.wake_latency_.worth_waking(within_us); }

   private:
    Pool& pool_;
    unsigned others_;  // other callers at construction
    bool timed_ = false;
  };

  WakeLatency& wake_latency() noexcept { return wake_latency_; }
  // Jobs for which helpers were woken.
  std::uint64_t jobs() const noexcept { return jobs_.load(std::memory_order_relaxed); }

  // The pool of this process. Never destroyed: its threads sleep until exit. A forked child makes its own.
  static Pool& shared();

 private:
  struct alignas(64) Helper {
    Doorbell bell;
    WakeTimer timer;
    std::atomic<int> cpu{-1};  // on which it last began to wait
    int avoided_cpu = -1;      // excluded from its affinity; guarded by job_mutex_
    std::thread thread;
  };

  static std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
  bool backing_off() const noexcept {
    const std::int64_t until = backoff_until_.load(std::memory_order_relaxed);
    return until != kNoBackoff && now() < until;
  }
  void record_wakeup(bool helped);
  void grow(unsigned helpers);
  void serve(Helper& self, unsigned participant);
  void wake_children(unsigned participant);
  static void move_off(int cpu, Helper& helper);
  bool join_job();
  void leave_job();

  static constexpr unsigned kMaxLateWakeups = 8;
  static constexpr std::int64_t kBackoffNs = 20'000'000;
  static constexpr std::int64_t kNoBackoff = 0;
  static constexpr std::int64_t kCloseNs = 20'000;  // less than a helper spins
  static constexpr std::uint32_t kClosed = 1u << 31;
  static constexpr std::uint32_t kOneJoined = 1u << 16;
  static constexpr std::uint32_t kActiveMask = 0xFFFF;

  std::mutex job_mutex_;  // held by the caller of the running job
  std::atomic<bool> stopping_{false};
  // Admission of helpers to the running job: bit 31: closed; bits 16..30: how many have joined; bits 0..15:
  // how many of them are active.
  std::atomic<std::uint32_t> admission_{kClosed};
  // Written while admission_ is closed and no helper is active; read by helpers that joined.
  Task task_ = nullptr;
  void* job_ = nullptr;
  unsigned job_helpers_ = 0;
  Turns job_turns_;               // of its caller
  std::uint32_t job_number_ = 0;  // what their bells ring with
  std::atomic<std::int64_t> last_end_{std::numeric_limits<std::int64_t>::min() / 2};  // of a call
  std::atomic<bool> spinning_pays_{false};
  std::atomic<std::uint64_t> jobs_{0};
  WakeLatency wake_latency_;
  std::atomic<unsigned> callers_{0};
  std::atomic<bool> contended_{false};  // another caller or busy thread was seen since the last late wake-up
  std::atomic<std::int64_t> backoff_until_{kNoBackoff};
  // Guarded by job_mutex_; helpers read it while they are active.
  std::deque<Helper> helpers_;
  unsigned late_wakeups_ = 0;  // in a row; guarded by job_mutex_
};

}  // namespace fused_mlp
