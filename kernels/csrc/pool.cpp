#include "pool.hpp"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <system_error>

#include "spin.hpp"

namespace fused_mlp {

Pool::~Pool() {
  ending_.store(true, std::memory_order_relaxed);
  call_.fetch_add(1, std::memory_order_release);
  call_.notify_all();
  for (Helper& helper : helpers_) helper.thread.join();
}

void Pool::run(unsigned helpers, Task task, void* job) {
  std::unique_lock<std::mutex> owner(owner_, std::defer_lock);
  if (helpers == 0 || !owner.try_lock()) return task(job, 0);
  if (helpers_.size() < helpers) grow(helpers);

  task_ = task;
  job_ = job;
  invited_ = helpers;
  door_.store(helpers * kPlace, std::memory_order_release);
  call_.fetch_add(1, std::memory_order_release);
  // Each costs a system call only where somebody sleeps.
  for (unsigned i = 0; i < helpers; ++i) call_.notify_one();

  task(job, 0);

  // Late helpers find the door closed; those inside are waited for, because the job lives on our stack.
  std::uint32_t door = door_.fetch_or(kClosed, std::memory_order_acq_rel) | kClosed;
  const unsigned missed = (door & ~kClosed) / kPlace;
  while ((door & kInside) != 0) door = wait_while_equal(door_, door);
  note_turnout(missed < helpers);
  if (missed != 0) part_from_caller();
}

// On a saturated machine a core that no thread of ours needs for a moment is another process', and a helper
// comes when the work is done: waking it was in vain, time and again. Then nobody is asked for a while. Not
// where this process has nothing else to do: there a helper that is late costs nobody anything.
void Pool::note_turnout(bool came) {
  if (came) {
    in_vain_ = 0;
  } else if (crowded_.exchange(false, std::memory_order_relaxed)) {
    in_vain_ = std::min(in_vain_ + 1, kInVain);
  } else if (in_vain_ == kInVain) {
    in_vain_ = 0;  // nobody else has worked for all that time
  }
  alone_until_.store(in_vain_ == kInVain ? now() + kAlone : kNever, std::memory_order_relaxed);
}

// A helper that waits for the caller's own core can't come, and the kernel may leave it there for
// milliseconds while other cores idle: send it elsewhere.
void Pool::part_from_caller() {
#if defined(__linux__)
  const int here = sched_getcpu();
  cpu_set_t elsewhere;
  if (here < 0 || pthread_getaffinity_np(pthread_self(), sizeof elsewhere, &elsewhere) != 0) return;
  CPU_CLR(static_cast<std::size_t>(here), &elsewhere);
  if (CPU_COUNT(&elsewhere) == 0) return;
  for (Helper& helper : helpers_) {
    if (helper.cpu.load(std::memory_order_relaxed) != here) continue;
    helper.cpu.store(-1, std::memory_order_relaxed);
    (void)pthread_setaffinity_np(helper.thread.native_handle(), sizeof elsewhere, &elsewhere);
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
    // No more threads to be had: those there are, at worst the caller alone, do the work.
  }
}

void Pool::serve(Helper& self) {
  std::uint32_t seen = 0;
  while (true) {
#if defined(__linux__)
    self.cpu.store(sched_getcpu(), std::memory_order_relaxed);
#endif
    // While others compute, spinning would take a core from one of them.
    seen = wait_while_equal(call_, seen, callers_.load(std::memory_order_relaxed) > 1 ? 0 : kSpins);
    if (ending_.load(std::memory_order_relaxed)) return;
    unsigned participant = 0;
    if (!enter(&participant)) continue;
    task_(job_, participant);
    leave();
  }
}

bool Pool::enter(unsigned* participant) {
  std::uint32_t door = door_.load(std::memory_order_relaxed);
  while (true) {
    const std::uint32_t places = (door & ~kClosed) / kPlace;
    if ((door & kClosed) != 0 || places == 0) return false;
    const std::uint32_t entered = door - kPlace + 1;
    if (door_.compare_exchange_weak(door, entered, std::memory_order_acquire, std::memory_order_relaxed)) {
      *participant = invited_ - places + 1;
      return true;
    }
  }
}

void Pool::leave() {
  const std::uint32_t door = door_.fetch_sub(1, std::memory_order_release) - 1;
  if ((door & kInside) == 0) door_.notify_all();
}

namespace {
std::atomic<Pool*> shared_pool{nullptr};
}  // namespace

Pool& Pool::shared() {
  Pool* pool = shared_pool.load(std::memory_order_acquire);
  if (pool != nullptr) return *pool;
  static const int at_fork = pthread_atfork(nullptr, nullptr, [] {
    // The child has no helpers, and perhaps a lock that nobody will open: it leaves the parent's pool behind.
    shared_pool.store(nullptr, std::memory_order_release);
  });
  (void)at_fork;
  Pool* made = new Pool;
  if (shared_pool.compare_exchange_strong(pool, made, std::memory_order_acq_rel)) return *made;
  delete made;
  return *pool;
}

}  // namespace fused_mlp
