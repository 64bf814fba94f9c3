// SPDX-License-Identifier: Apache-2.0
#include "lock_times.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace fused_mlp::bench {
namespace {

constexpr double kDescheduledNs = 50'000;
constexpr std::size_t kBuckets = 256;  // of holds: by 1/8 of a power of two, in ticks
constexpr std::size_t kNested = 4;

std::uint64_t steady_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

// Cheaper than the clock, which would be as long as what it measures.
std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return steady_ns();
#endif
}

double ns_per_tick() {
  static const double value = [] {
    const std::uint64_t ns = steady_ns(), start = ticks();
    while (steady_ns() - ns < 20'000'000) {
    }
    return static_cast<double>(steady_ns() - ns) / static_cast<double>(ticks() - start);
  }();
  return value;
}

struct ThreadTimes {
  std::uint64_t locks, wait, hold, descheduled;
  std::array<std::uint32_t, kBuckets> holds;
  std::array<std::uint64_t, kNested> since;  // of the mutexes that the thread holds
  std::size_t depth;
};
std::array<ThreadTimes, 256> all_threads;  // zeros: used before any constructor has run
std::atomic<std::size_t> threads_seen{0};
constinit thread_local ThreadTimes* mine = nullptr;

ThreadTimes& of_this_thread() noexcept {
  if (mine == nullptr) mine = &all_threads[threads_seen.fetch_add(1) % all_threads.size()];
  return *mine;
}

std::size_t bucket_of(std::uint64_t value) noexcept {
  if (value < 8) return value;
  const auto width = static_cast<unsigned>(64 - __builtin_clzll(value));
  return std::min<std::size_t>(kBuckets - 1, (width - 3) * 8 + ((value >> (width - 4)) & 7));
}
double value_of(std::size_t bucket) noexcept {
  if (bucket < 8) return static_cast<double>(bucket);
  return static_cast<double>((8 + bucket % 8) << (bucket / 8 - 1));
}

void on_locked(std::uint64_t asked) noexcept {
  ThreadTimes& times = of_this_thread();
  const std::uint64_t now = ticks();
  ++times.locks;
  if (static_cast<double>(now - asked) * ns_per_tick() < kDescheduledNs) {
    times.wait += now - asked;
  } else {
    ++times.descheduled;
  }
  times.since[times.depth++ % kNested] = now;
}

void on_unlock() noexcept {
  ThreadTimes& times = of_this_thread();
  if (times.depth == 0) return;  // locked by pthread_mutex_trylock, or before this was loaded
  const std::uint64_t took = ticks() - times.since[--times.depth % kNested];
  ++times.holds[bucket_of(took)];
  if (static_cast<double>(took) * ns_per_tick() < kDescheduledNs) {
    times.hold += took;
  } else {
    ++times.descheduled;
  }
}

template <class Function>
Function real(const char* name, std::atomic<Function>& known) noexcept {
  Function found = known.load(std::memory_order_relaxed);
  if (found == nullptr) {
    found = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
    known.store(found, std::memory_order_relaxed);
  }
  return found;
}

}  // namespace

LockTimes collect_lock_times() {
  LockTimes result;
  std::array<std::uint64_t, kBuckets> holds{};
  for (ThreadTimes& times : all_threads) {
    result.locks += times.locks;
    result.wait_ns += static_cast<double>(times.wait) * ns_per_tick();
    result.hold_ns += static_cast<double>(times.hold) * ns_per_tick();
    for (std::size_t i = 0; i < kBuckets; ++i) holds[i] += times.holds[i];
    result.descheduled += times.descheduled;
    times.locks = times.wait = times.hold = times.descheduled = 0;
    times.holds = {};
  }
  std::uint64_t total = 0, seen = 0;
  for (const std::uint64_t count : holds) total += count;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    const double ns = value_of(i) * ns_per_tick();
    if (seen * 2 < total && (seen + holds[i]) * 2 >= total) result.hold_median_ns = ns;
    if (seen * 100 < total * 99 && (seen + holds[i]) * 100 >= total * 99) result.hold_p99_ns = ns;
    seen += holds[i];
  }
  return result;
}

}  // namespace fused_mlp::bench

// ---- In place of the C library's ----

using namespace fused_mlp::bench;

// Visible, so that the standard library finds them too.
#define INTERPOSED __attribute__((visibility("default")))

extern "C" INTERPOSED int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static std::atomic<int (*)(pthread_mutex_t*)> known;
  const auto lock = real("pthread_mutex_lock", known);
  const std::uint64_t asked = ticks();
  const int result = lock(mutex);
  on_locked(asked);
  return result;
}

extern "C" INTERPOSED int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static std::atomic<int (*)(pthread_mutex_t*)> known;
  on_unlock();
  return real("pthread_mutex_unlock", known)(mutex);
}

// A thread that waits on a condition variable does not hold its mutex.
extern "C" INTERPOSED int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  static std::atomic<int (*)(pthread_cond_t*, pthread_mutex_t*)> known;
  on_unlock();
  const int result = real("pthread_cond_wait", known)(condition, mutex);
  on_locked(ticks());
  return result;
}

extern "C" INTERPOSED int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                                 clockid_t clock, const timespec* until) {
  static std::atomic<int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)> known;
  on_unlock();
  const int result = real("pthread_cond_clockwait", known)(condition, mutex, clock, until);
  on_locked(ticks());
  return result;
}
