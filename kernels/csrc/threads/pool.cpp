#include "threads/pool.hpp"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <system_error>

#include "threads/spin.hpp"

namespace fused_mlp {

Pool::~Pool() {
  stopping_.store(true, std::memory_order_relaxed);
  job_number_.fetch_add(1, std::memory_order_release);
  job_number_.notify_all();
  for (Helper& helper : helpers_) helper.thread.join();
}

void Pool::run(unsigned helpers, Task task, void* job) {
  std::unique_lock<std::mutex> lock(job_mutex_, std::defer_lock);
  if (helpers == 0 || !lock.try_lock()) return task(job, 0);
  if (helpers_.size() < helpers) grow(helpers);

  task_ = task;
  job_ = job;
  job_helpers_ = helpers;
  admission_.store(helpers * kOneSlot, std::memory_order_release);
  job_number_.fetch_add(1, std::memory_order_release);
  // Makes a system call only if a helper sleeps.
  for (unsigned i = 0; i < helpers; ++i) job_number_.notify_one();

  task(job, 0);

  // No helper joins from here on. Wait for those that have joined: the job is on this thread's stack.
  std::uint32_t state = admission_.fetch_or(kClosed, std::memory_order_acq_rel) | kClosed;
  const unsigned missed = (state & ~kClosed) / kOneSlot;
  while ((state & kActiveMask) != 0) state = wait_while_equal(admission_, state);
  record_wakeup(missed < helpers);
  if (missed != 0) move_helpers_off_this_cpu();
}

// After 8 wake-ups that arrived too late, skip helpers for 20 ms: on a saturated machine a helper gets a core
// only when the job is done. Applies only while other threads of this process compete for the cores;
// otherwise a late helper costs nothing.
void Pool::record_wakeup(bool helped) {
  if (helped) {
    late_wakeups_ = 0;
  } else if (contended_.exchange(false, std::memory_order_relaxed)) {
    late_wakeups_ = std::min(late_wakeups_ + 1, kMaxLateWakeups);
  } else if (late_wakeups_ == kMaxLateWakeups) {
    late_wakeups_ = 0;  // no contention during the whole back-off
  }
  backoff_until_.store(late_wakeups_ == kMaxLateWakeups ? now() + kBackoffNs : kNoBackoff,
                       std::memory_order_relaxed);
}

// A helper queued on the caller's own CPU cannot start, and the operating system may leave it there for
// milliseconds while other CPUs are idle: set its affinity to the others.
void Pool::move_helpers_off_this_cpu() {
#if defined(__linux__)
  const int this_cpu = sched_getcpu();
  cpu_set_t other_cpus;
  if (this_cpu < 0 || pthread_getaffinity_np(pthread_self(), sizeof other_cpus, &other_cpus) != 0) return;
  CPU_CLR(static_cast<std::size_t>(this_cpu), &other_cpus);
  if (CPU_COUNT(&other_cpus) == 0) return;
  for (Helper& helper : helpers_) {
    if (helper.cpu.load(std::memory_order_relaxed) != this_cpu) continue;
    helper.cpu.store(-1, std::memory_order_relaxed);
    (void)pthread_setaffinity_np(helper.thread.native_handle(), sizeof other_cpus, &other_cpus);
  }
#endif
}

void Pool::grow(unsigned helpers) {
  try {
    while (helpers_.size() < helpers) {
      Helper& helper = helpers_.emplace_back();
      helper.thread = std::thread([this, &helper] { serve(helper); });
    }
  } catch (const std::system_error&) {
    helpers_.pop_back();
    // No more threads: the existing ones do the work, at worst the caller alone.
  }
}

void Pool::serve(Helper& self) {
  std::uint32_t seen = 0;
  while (true) {
#if defined(__linux__)
    self.cpu.store(sched_getcpu(), std::memory_order_relaxed);
#endif
    // With several callers, spinning would take a core from one of them.
    seen = wait_while_equal(job_number_, seen, callers_.load(std::memory_order_relaxed) > 1 ? 0 : kSpins);
    if (stopping_.load(std::memory_order_relaxed)) return;
    unsigned participant = 0;
    if (!join_job(&participant)) continue;
    task_(job_, participant);
    leave_job();
  }
}

bool Pool::join_job(unsigned* participant) {
  std::uint32_t state = admission_.load(std::memory_order_relaxed);
  while (true) {
    const std::uint32_t slots = (state & ~kClosed) / kOneSlot;
    if ((state & kClosed) != 0 || slots == 0) return false;
    const std::uint32_t joined = state - kOneSlot + 1;
    if (admission_.compare_exchange_weak(state, joined, std::memory_order_acquire,
                                         std::memory_order_relaxed)) {
      *participant = job_helpers_ - slots + 1;
      return true;
    }
  }
}

void Pool::leave_job() {
  const std::uint32_t state = admission_.fetch_sub(1, std::memory_order_release) - 1;
  if ((state & kActiveMask) == 0) admission_.notify_all();
}

namespace {
std::atomic<Pool*> shared_pool{nullptr};
}  // namespace

Pool& Pool::shared() {
  Pool* pool = shared_pool.load(std::memory_order_acquire);
  if (pool != nullptr) return *pool;
  static const int at_fork = pthread_atfork(nullptr, nullptr, [] {
    // The child has no helper threads, and a mutex may be locked for ever: it abandons the parent's pool.
    shared_pool.store(nullptr, std::memory_order_release);
  });
  (void)at_fork;
  Pool* made = new Pool;
  if (shared_pool.compare_exchange_strong(pool, made, std::memory_order_acq_rel)) return *made;
  delete made;
  return *pool;
}

}  // namespace fused_mlp
