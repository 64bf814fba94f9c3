// SPDX-License-Identifier: Apache-2.0
// Measures the pool: a job that does nothing with helpers that spin, the same after a pause in which they
// fall asleep, and the barrier between two stages. With more threads than cores the figures are those of a
// crowded machine. Prints microseconds: the median and, of processor time, the mean of all threads.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>

#include "threads/pool.hpp"
#include "threads/wake_cost.hpp"

namespace {

using namespace fused_mlp;
using Clock = std::chrono::steady_clock;
constexpr int kRounds = 400;

double process_cpu_us() {
  timespec time{};
  (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

struct Cost {
  double median_us;
  double cpu_us;
};

Cost measure(const std::function<void()>& call, std::chrono::microseconds pause) {
  std::vector<double> times;
  double cpu = 0;
  for (int i = 0; i < kRounds; ++i) {
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
    const double before = process_cpu_us();
    const auto start = Clock::now();
    call();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    if (pause.count() > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(200));  // helpers fall asleep
    cpu += process_cpu_us() - before;
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return {times[kRounds / 2], cpu / kRounds};
}

// All participants meet `meetings` times.
struct Meeting {
  unsigned participants;
  int meetings;
  std::atomic<unsigned> arrived{0};

  static void task(void* self, unsigned) {
    auto* job = static_cast<Meeting*>(self);
    for (int i = 1; i <= job->meetings; ++i) {
      const unsigned all = job->participants * static_cast<unsigned>(i);
      unsigned now = job->arrived.fetch_add(1, std::memory_order_acq_rel) + 1;
      if (now == all) job->arrived.notify_all();
      while (now < all) now = wait_while_equal(job->arrived, now);
    }
  }
};

}  // namespace

int main() {
  const WakeCost& wake = measured_wake_cost();
  std::printf("as the planner measures it: a sleeping thread runs after %.1f us and costs %.1f us of CPU\n",
              wake.latency_us, wake.cpu_us);
  std::printf("%u cores\nthreads  all join, awake  asleep  CPU, asleep  a barrier\n",
              std::thread::hardware_concurrency());
  for (const unsigned threads : {2u, 4u, 8u}) {
    Pool pool;
    const auto meet = [&](int meetings) {
      return [&pool, threads, meetings] {
        Pool::CallerScope caller(pool);
        (void)caller.follows_closely();
        Meeting job{threads, meetings};
        pool.run(threads - 1, Meeting::task, &job);
      };
    };
    const Cost awake = measure(meet(1), std::chrono::microseconds(0));
    const Cost many = measure(meet(21), std::chrono::microseconds(0));
    const Cost asleep = measure(meet(1), std::chrono::microseconds(1000));
    std::printf("%7u  %15.2f  %6.1f  %11.1f  %9.2f\n", threads, awake.median_us, asleep.median_us,
                asleep.cpu_us, (many.median_us - awake.median_us) / 20);
  }
}
