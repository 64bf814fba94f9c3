// SPDX-License-Identifier: Apache-2.0
// The pool does every piece of work once, with any number of helpers; callers never wait for each other.
#include "threads/pool.hpp"

#if defined(__linux__)
#include <doctest/doctest.h>
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "threads/claims.hpp"
#include "threads/wake_cost.hpp"

using namespace fused_mlp;

namespace {

struct Counting {
  static constexpr int kPieces = 64;
  std::atomic<int> next{0};
  int done[kPieces] = {};  // not atomic: each piece belongs to one participant, as in the kernel
  std::atomic<unsigned> participants{0};

  static void task(void* self, unsigned participant) {
    auto* job = static_cast<Counting*>(self);
    job->participants.fetch_or(1u << participant);
    for (int piece = job->next.fetch_add(1); piece < kPieces; piece = job->next.fetch_add(1))
      ++job->done[piece];
  }
};

void check_run(Pool& pool, unsigned helpers) {
  Counting job;
  pool.run(helpers, Counting::task, &job);
  // Read without further synchronisation: run() must have made all writes visible.
  for (int count : job.done) CHECK(count == 1);
  CHECK((job.participants.load() & 1u) != 0);              // the caller takes part
  CHECK(job.participants.load() < (1u << (helpers + 1)));  // at most `helpers` others
}

TEST_CASE("every piece is done once") {
  Pool pool;
  for (unsigned helpers = 0; helpers <= 4; ++helpers) {
    for (int i = 0; i < 500; ++i) check_run(pool, helpers);
  }
}

TEST_CASE("sleeping helpers wake up") {
  Pool pool;
  for (int i = 0; i < 20; ++i) {
    check_run(pool, 2);
    // Long enough for the helpers to stop spinning and sleep: the test is that they wake up.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST_CASE("callers share a pool") {
  Pool pool;
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&pool] {
      for (int i = 0; i < 300; ++i) check_run(pool, 2);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

// A job started inside a job finds the pool busy and must run alone instead of waiting.
TEST_CASE("a busy pool lets the caller work alone") {
  Pool pool;
  struct Outer {
    Pool& pool;
    std::atomic<int> inner_runs{0};
    static void task(void* self, unsigned) {
      auto* outer = static_cast<Outer*>(self);
      Counting inner;
      outer->pool.run(2, Counting::task, &inner);
      CHECK(inner.participants.load() == 1u);
      outer->inner_runs.fetch_add(1);
    }
  };
  Outer outer{pool};
  pool.run(1, Outer::task, &outer);
  CHECK(outer.inner_runs.load() >= 1);
}

TEST_CASE("callers and busy threads keep their cores") {
  Pool pool;
  {
    const Pool::CallerScope first(pool);
    CHECK(first.free_threads(4, 0) == 4);
    const Pool::CallerScope second(pool);
    CHECK(second.free_threads(4, 0) == 3);
    CHECK(second.free_threads(4, 1) == 3);  // the busy thread may be the other caller
    CHECK(second.free_threads(4, 2) == 2);
    CHECK(second.free_threads(4, 9) == 1);
    CHECK(second.free_threads(1, 0) == 1);
  }
  CHECK(Pool::CallerScope(pool).free_threads(4, 0) == 4);
}

// All of them, though the caller wakes only two: the job ends when everyone has come.
TEST_CASE("helpers wake helpers") {
  struct Meeting {
    unsigned expected;
    std::atomic<unsigned> arrived{0};
    std::vector<std::atomic<unsigned>> times;
    explicit Meeting(unsigned expected) : expected(expected), times(expected) {}
    static void task(void* self, unsigned participant) {
      auto* meeting = static_cast<Meeting*>(self);
      meeting->times[participant].fetch_add(1);
      meeting->arrived.fetch_add(1);
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (meeting->arrived.load() < meeting->expected && std::chrono::steady_clock::now() < end) {
        std::this_thread::yield();
      }
    }
  };
  Pool pool;
  for (unsigned helpers : {1u, 2u, 3u, 7u, 100u, 4u}) {
    Meeting meeting(helpers + 1);
    pool.run(helpers, Meeting::task, &meeting);
    for (const auto& times : meeting.times) CHECK(times.load() == 1);
  }
}

TEST_CASE("a call follows closely after a short gap only") {
  Pool pool;
  const auto follows = [&pool] { return Pool::CallerScope(pool).follows_closely(); };
  CHECK(!follows());
  int tries = 0;
  while (!follows() && ++tries < 1'000'000) {
  }
  CHECK(tries < 1'000'000);  // between two of them this thread was not interrupted
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
  while (std::chrono::steady_clock::now() < until) {
  }
  CHECK(!follows());
}

// As many wake-ups that took so long.
void record(Pool& pool, std::int64_t us) {
  for (int i = 0; i < 100; ++i) pool.wake_latency().record(us * 1000);
}

TEST_CASE("helpers that wake too late are not woken") {
  Pool pool;
  Pool::CallerScope caller(pool);
  CHECK(caller.worth_waking(0.5));  // nothing is known yet
  record(pool, 40);
  pool.wake_latency().record(5'000'000);  // one that was descheduled
  CHECK(caller.worth_waking(60));
  unsigned trials = 0;
  for (unsigned i = 0; i < 4 * WakeLatency::kTrial; ++i) trials += caller.worth_waking(15) ? 1 : 0;
  CHECK(trials == 4);
  record(pool, 5);
  CHECK(caller.worth_waking(15));
}

TEST_CASE("sleeping helpers are timed") {
  Pool pool;
  check_run(pool, 1);
  while (pool.wake_latency().us() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the helper falls asleep
    check_run(pool, 1);
  }
}

TEST_CASE("a late helper is timed from the ring that woke it") {
  WakeTimer timer;
  CHECK(timer.answered() == WakeTimer::kNotTimed);
  timer.rung(1000);
  timer.rung(41'000);  // the next job of a burst, before the helper runs
  CHECK(timer.answered() == 1000);
  CHECK(timer.answered() == WakeTimer::kNotTimed);
  timer.rung(90'000);
  CHECK(timer.answered() == 90'000);
}

// Event loops must not wait for the helper of a worker that lets them go first.
TEST_CASE("helpers step back with their caller") {
  struct Priorities {
    std::atomic<int> nice[2] = {-1, -1};
    static void task(void* self, unsigned participant) {
      auto* job = static_cast<Priorities*>(self);
      job->nice[participant] = current_turns().nice;
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (job->nice[1 - participant] < 0 && std::chrono::steady_clock::now() < end) {
        std::this_thread::yield();
      }
    }
  };
  Pool pool;
  const int usual = current_turns().nice;
  const auto nice_of_helper = [&pool] {
    Priorities job;
    pool.run(1, Priorities::task, &job);
    return job.nice[1].load();
  };
  CHECK(nice_of_helper() == usual);
  std::thread([&] {
    Turns mine = current_turns(), nicer = mine;
    nicer.nice = std::min(mine.nice + 3, 19);
    step_back_to(nicer, mine);
    CHECK(nice_of_helper() == nicer.nice);
  }).join();
  std::thread([&] {
    Turns mine = current_turns(), lowest = mine;
    if (lowest.nice >= 14) return;  // the process has nearly the lowest itself: then helpers take it, too
    lowest.nice = 19;
    step_back_to(lowest, mine);
    std::atomic<unsigned> participants{0};
    const auto count = [](void* job, unsigned) { ++*static_cast<std::atomic<unsigned>*>(job); };
    pool.run(1, count, &participants);
    CHECK(participants == 1);
  }).join();
  CHECK((nice_of_helper() < 19 || usual >= 14));
}

TEST_CASE("waking costs something") {
  const WakeCost& cost = measured_wake_cost();
  CHECK((cost.latency_us >= 1 && cost.latency_us <= 50));
  CHECK((cost.cpu_us >= 1 && cost.cpu_us <= 50));
  CHECK(&measured_wake_cost() == &cost);
}

// Jobs that end before a helper can join, while other threads are busy: after some of them the pool skips
// helpers, and uses them again after the back-off.
TEST_CASE("late helpers are skipped during a backoff") {
  Pool pool;
  const auto free_threads = [&pool] { return Pool::CallerScope(pool).free_threads(2, 0); };
  for (int i = 0; i < 1'000'000 && free_threads() == 2; ++i) {
    (void)Pool::CallerScope(pool).free_threads(2, 1);
    pool.run(
        1, [](void*, unsigned) {}, nullptr);
  }
  CHECK(free_threads() == 1);
  while (free_threads() == 1) std::this_thread::yield();
}

// A participant that loses its core in the middle of a piece keeps that piece alone.
TEST_CASE("pieces of a stalled participant are taken over") {
  constexpr std::size_t kPieces = 130, kStalled = 65;
  Claims claims;
  std::atomic<bool> begun{false}, others_done{false};
  int done[kPieces] = {};
  std::size_t of_the_stalled = 0;
  std::thread stalled([&] {
    claims.each(kPieces, kStalled, [&](std::size_t piece) {
      ++done[piece];
      ++of_the_stalled;
      begun.store(true);
      while (!others_done.load()) std::this_thread::yield();
    });
  });
  while (!begun.load()) std::this_thread::yield();
  std::size_t taken = 0;
  claims.each(kPieces, 0, [&](std::size_t piece) { ++done[piece], ++taken; });
  others_done.store(true);
  stalled.join();
  CHECK((of_the_stalled == 1 && taken == kPieces - 1 && done[kStalled] == 1));
  for (int times : done) CHECK(times == 1);
}

#if defined(__linux__)
// A helper that sleeps on its caller's CPU, here because both were bound to it, is moved to the others.
TEST_CASE("a helper on its callers cpu is moved off") {
  cpu_set_t all;
  CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
  if (CPU_COUNT(&all) < 2) return;
  struct Job {
    cpu_set_t helpers;  // its affinity
    std::atomic<bool> joined{false};
    static void task(void* self, unsigned participant) {
      auto* job = static_cast<Job*>(self);
      if (participant == 1) {
        CHECK(sched_getaffinity(0, sizeof job->helpers, &job->helpers) == 0);
        job->joined.store(true);
      }
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!job->joined.load() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    }
  };
  Pool pool;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
  bool moved = false;
  for (int i = 0; i < 100 && !moved; ++i) {
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);  // the first helper inherits it
    Job bound;
    pool.run(1, Job::task, &bound);
    CHECK(sched_setaffinity(0, sizeof all, &all) == 0);
    Job free;
    pool.run(1, Job::task, &free);
    cpu_set_t kept;
    CPU_AND(&kept, &free.helpers, &one);
    moved = CPU_COUNT(&kept) == 0;
    if (moved) CHECK(CPU_COUNT(&free.helpers) == CPU_COUNT(&all) - 1);
  }
  CHECK(moved);
}
#endif

TEST_CASE("the shared pool runs a job alone") { check_run(Pool::shared(), 1); }

}  // namespace
