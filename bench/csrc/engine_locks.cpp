// SPDX-License-Identifier: Apache-2.0
// Benchmark of the engine's locks: how long they are waited for and held, per request and per batch, with 1
// to 8 threads; and what choosing a lane costs while many are ready. There may be more threads than cores:
// hold times then still tell how many cores a lock can carry, throughput does not.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <thread>

#include "engine/engine.hpp"
#include "lock_times.hpp"

namespace {

using namespace fused_mlp;

constexpr std::size_t kWidth = 64;

void spin(Nanos time) {
  const Nanos until = steady_clock().now() + time;
  while (steady_clock().now() < until) {
  }
}

// `ctx`: how long a row takes, in ns.
int run_rows(void* ctx, const float*, std::size_t rows, float*, unsigned, char*, std::size_t) {
  if (const auto row = static_cast<Nanos>(reinterpret_cast<std::intptr_t>(ctx)); row != 0) {
    spin(row * static_cast<Nanos>(rows));
  }
  return 0;
}
const char* name_strategy(void*, std::size_t) { return "bench"; }

struct TimedKernel {
  explicit TimedKernel(Nanos row)
      : api{FUSED_MLP_KERNEL_ABI,
            0,
            reinterpret_cast<void*>(row),
            kWidth,
            10,
            run_rows,
            name_strategy,
            0,
            nullptr,
            nullptr} {}
  fused_mlp_kernel api;
};

class Counter final : public CompletionSink {
 public:
  void flush() noexcept override {}
  std::atomic<int> left{0};
};

// Created once and submitted repeatedly, as by a front that recycles its tickets.
class BenchTicket final : public Ticket {
 public:
  explicit BenchTicket(Counter* counter) : Ticket(1, counter), counter_(counter) {}

 protected:
  void gather(float* dst) noexcept override { std::fill(dst, dst + kWidth, 1.0f); }
  void complete(const Outcome&) noexcept override {
    if (counter_->left.fetch_sub(1, std::memory_order_release) == 1) counter_->left.notify_one();
  }

 private:
  Counter* counter_;
};

EngineOptions with_workers(unsigned workers) {
  EngineOptions options;
  options.workers = workers;
  return options;
}

std::shared_ptr<Lane> add_lane(Engine& engine, const TimedKernel& kernel, Nanos row) {
  LaneOptions options;
  options.in_features = kWidth;
  options.out_features = 10;
  options.cost = {0, static_cast<double>(row)};
  return engine.add_lane(options, std::make_unique<CapsuleKernel>(&kernel.api, nullptr));
}

// Does the work of an event loop: a round of requests, each of its own connection, then its batches.
struct Loop {
  Loop(Engine& used, unsigned number, int burst) : engine(used), runner(used) {
    for (int i = 0; i < burst; ++i) {
      tickets.push_back(make_ref<BenchTicket>(&counter));
      tickets.back()->flow = (std::uint64_t{number} << 32) + static_cast<std::uint64_t>(i);
    }
  }
  void round(Lane& lane) {
    submissions.clear();
    counter.left = static_cast<int>(tickets.size());
    const Nanos now = engine.clock().now();
    for (const auto& ticket : tickets) {
      ticket->arrival_ns = now;
      submissions.push_back({&lane, Ref<Ticket>(Ref<BenchTicket>(ticket))});
    }
    runner.submit(submissions);
    while (runner.run_ready()) {
    }
    // Sleeps, as in epoll_wait. (One that spins would take the core of a worker that holds a lock.)
    for (int left; (left = counter.left.load(std::memory_order_acquire)) > 0;) counter.left.wait(left);
    for (const auto& each : tickets) lane.record(0, 1000 + each->arrival_ns % 2);  // as a front does
  }

  Engine& engine;
  InlineRunner runner;
  Counter counter;
  std::vector<Ref<BenchTicket>> tickets;
  std::vector<Submission> submissions;
};

void measure(const char* what, unsigned threads, unsigned workers, int burst, Nanos row, int requests) {
  const TimedKernel kernel(row);
  Engine engine(with_workers(workers));
  const std::shared_ptr<Lane> lane = add_lane(engine, kernel, row);
  std::barrier start(static_cast<std::ptrdiff_t>(threads)), end(static_cast<std::ptrdiff_t>(threads));
  std::vector<std::thread> loops;
  const int rounds = std::max(1, requests / burst / static_cast<int>(threads));
  bench::LockTimes times;
  std::uint64_t before = 0;
  for (unsigned i = 0; i < threads; ++i) {
    loops.emplace_back([&, i] {
      Loop loop(engine, i, burst);
      for (int round = 0; round < 100; ++round) loop.round(*lane);
      start.arrive_and_wait();
      if (i == 0) {
        bench::collect_lock_times();
        before = lane->metrics->batch_rows().count;
      }
      start.arrive_and_wait();
      for (int round = 0; round < rounds; ++round) loop.round(*lane);
      end.arrive_and_wait();
      if (i == 0) times = bench::collect_lock_times();
      end.arrive_and_wait();
    });
  }
  for (std::thread& loop : loops) loop.join();
  const double done = static_cast<double>(rounds) * burst * threads;
  const auto batches = static_cast<double>(lane->metrics->batch_rows().count - before);
  std::printf(
      "%-12s %u threads, %2d at once: per request %5.2f locks, held %6.1f ns, waited %8.1f ns; per batch "
      "held %6.1f ns; "
      "a hold: median %5.0f ns, p99 %6.0f ns; %llu descheduled\n",
      what, threads, burst, static_cast<double>(times.locks) / done, times.hold_ns / done,
      times.wait_ns / done, times.hold_ns / batches, times.hold_median_ns, times.hold_p99_ns,
      static_cast<unsigned long long>(times.descheduled));
}

// So many lanes have a request each; a loop takes one after the other.
void measure_choice(int lanes, int flows) {
  const TimedKernel kernel(0);
  Engine engine(with_workers(0));
  std::vector<std::shared_ptr<Lane>> all;
  for (int i = 0; i < lanes; ++i) all.push_back(add_lane(engine, kernel, 0));
  Counter counter;
  InlineRunner runner(engine);
  std::vector<Ref<BenchTicket>> tickets;
  for (int i = 0; i < lanes * flows; ++i) {
    tickets.push_back(make_ref<BenchTicket>(&counter));
    tickets.back()->flow = static_cast<std::uint64_t>(i % flows);
  }
  const auto fill = [&] {
    for (int i = 0; i < lanes * flows; ++i) {
      Ref<Ticket> ticket{Ref<BenchTicket>(tickets[static_cast<std::size_t>(i)])};
      if (engine.submit(*all[static_cast<std::size_t>(i / flows)], std::move(ticket)) != Status::ok)
        std::abort();
    }
  };
  for (int warm = 0; warm < 3; ++warm) {
    fill();
    while (runner.run_ready()) {
    }
  }
  fill();
  bench::collect_lock_times();
  int taken = 0;
  for (; taken < 100 && runner.run_ready(); ++taken) {
  }
  const bench::LockTimes times = bench::collect_lock_times();
  std::printf("taking a batch, %5d lanes ready, %4d connections each: held %8.0f ns\n", lanes, flows,
              times.hold_ns / taken);
  while (runner.run_ready()) {
  }
}

}  // namespace

int main() {
  for (const int burst : {1, 16}) {
    for (const unsigned threads : {1u, 2u, 4u, 8u}) measure("on the loop", threads, 2, burst, 0, 400'000);
  }
  // 150 us: more than a loop runs itself.
  for (const unsigned threads : {1u, 2u, 4u, 8u}) measure("by workers", threads, threads, 4, 150'000, 4'000);
  for (const int lanes : {1, 10, 100, 1000, 10'000}) measure_choice(lanes, 1);
  for (const int flows : {8, 64, 1000}) measure_choice(1, flows);
}
