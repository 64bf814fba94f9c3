// SPDX-License-Identifier: Apache-2.0
#include "threads/pool.hpp"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <system_error>

#include "threads/spin.hpp"

namespace fused_mlp {

namespace {

constexpr unsigned kChildren = 2;  // helpers that a participant wakes

// Whether this thread has a lower priority than all that serve: it loads or compares. Workers of the service
// are five levels nicer than the process.
bool in_background(const Turns& turns) noexcept {
#if defined(__linux__)
  static const int usual = getpriority(PRIO_PROCESS, static_cast<id_t>(getpid()));
  return turns.nice == kLowestPriority && usual + kWorkersNicer < kLowestPriority;
#else
  return turns.nice == kLowestPriority;
#endif
}

int this_cpu() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

}  // namespace

Pool::~Pool() {
  stopping_.store(true, std::memory_order_relaxed);
  ++job_number_;
  for (Helper& helper : helpers_) helper.bell.ring(job_number_);
  for (Helper& helper : helpers_) helper.thread.join();
}

void Pool::run(unsigned helpers, Task task, void* job) {
  // Read once per thread: a system call. Threads choose their turns when they begin.
  static thread_local const Turns turns = current_turns();
  // A helper keeps the lowest priority that it ever had, so what is in the background works alone.
  std::unique_lock<std::mutex> lock(job_mutex_, std::defer_lock);
  if (helpers == 0 || in_background(turns) || !lock.try_lock()) return task(job, 0);
  if (helpers_.size() < helpers) grow(helpers);
  job_turns_ = turns;
  task_ = task;
  job_ = job;
  job_helpers_ = static_cast<unsigned>(std::min<std::size_t>(helpers, helpers_.size()));
  job_number_ = (job_number_ + 1) & (~std::uint32_t{0} >> 1);
  const int cpu = this_cpu();
  // Helpers that spin need no measuring, and reading the clock would be a part of a short job.
  const std::int64_t rung_at = spinning_pays_.load(std::memory_order_relaxed) ? WakeTimer::kNotTimed : now();
  for (unsigned child = 0; child < std::min(kChildren, job_helpers_); ++child) {
    Helper& helper = helpers_[child];
    if (helper.cpu.load(std::memory_order_relaxed) == cpu) move_off(cpu, helper);
    if (rung_at != WakeTimer::kNotTimed) helper.timer.rung(rung_at);
  }
  jobs_.fetch_add(1, std::memory_order_relaxed);
  admission_.store(0, std::memory_order_release);
  wake_children(0);

  task(job, 0);

  // No helper joins from here on. Wait for those that have joined: the job is on this thread's stack.
  std::uint32_t state = admission_.fetch_or(kClosed, std::memory_order_acq_rel) | kClosed;
  const unsigned joined = (state & ~kClosed) / kOneJoined;
  while ((state & kActiveMask) != 0) state = wait_while_equal(admission_, state);
  record_wakeup(joined != 0);
  // A late one may have been woken on this CPU, wherever it slept.
  for (unsigned child = 0; joined == 0 && child < std::min(kChildren, job_helpers_); ++child) {
    move_off(cpu, helpers_[child]);
  }
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
void Pool::move_off(int cpu, Helper& helper) {
#if defined(__linux__)
  if (cpu < 0 || helper.avoided_cpu == cpu) return;
  cpu_set_t other_cpus;
  if (pthread_getaffinity_np(pthread_self(), sizeof other_cpus, &other_cpus) != 0) return;
  CPU_CLR(static_cast<std::size_t>(cpu), &other_cpus);
  if (CPU_COUNT(&other_cpus) == 0) return;
  helper.avoided_cpu = cpu;
  (void)pthread_setaffinity_np(helper.thread.native_handle(), sizeof other_cpus, &other_cpus);
#else
  (void)cpu, (void)helper;
#endif
}

void Pool::grow(unsigned helpers) {
  try {
    while (helpers_.size() < helpers) {
      Helper& helper = helpers_.emplace_back();
      const auto participant = static_cast<unsigned>(helpers_.size());
      helper.thread = std::thread([this, &helper, participant] { serve(helper, participant); });
    }
  } catch (const std::system_error&) {
    helpers_.pop_back();
    // No more threads: the existing ones do the work, at worst the caller alone.
  }
}

void Pool::serve(Helper& self, unsigned participant) {
  std::uint32_t seen = 0;
  Turns turns = current_turns();
  while (true) {
    self.cpu.store(this_cpu(), std::memory_order_relaxed);
    // With several callers, spinning would take a core from one of them.
    const bool spins =
        spinning_pays_.load(std::memory_order_relaxed) && callers_.load(std::memory_order_relaxed) <= 1;
    const Doorbell::Ring ring = self.bell.wait(seen, spins ? kSpins : 0);
    seen = ring.number;
    if (stopping_.load(std::memory_order_relaxed)) return;
    // The caller wakes the first helpers itself. A job that they miss counts as well: they were too late for
    // it.
    const std::int64_t rung_at = self.timer.answered();
    if (ring.slept && rung_at != WakeTimer::kNotTimed) wake_latency_.record(now() - rung_at);
    if (!join_job()) continue;
    // A helper that is late for the job it was woken for may have joined the next one, which may want fewer.
    if (participant <= job_helpers_) {
      wake_children(participant);
      // A helper of a worker that lets event loops go first does so as well.
      step_back_to(job_turns_, turns);
      task_(job_, participant);
    }
    leave_job();
  }
}

// The helpers form a binary tree below the caller: with many of them, the last one starts after a few
// wake-ups rather than after as many as there are helpers.
void Pool::wake_children(unsigned participant) {
  const unsigned first = kChildren * participant;
  for (unsigned i = first; i < std::min(first + kChildren, job_helpers_); ++i)
    helpers_[i].bell.ring(job_number_);
}

bool Pool::join_job() {
  std::uint32_t state = admission_.load(std::memory_order_relaxed);
  while ((state & kClosed) == 0) {
    if (admission_.compare_exchange_weak(state, state + kOneJoined + 1, std::memory_order_acquire,
                                         std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
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
