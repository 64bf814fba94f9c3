// SPDX-License-Identifier: Apache-2.0
// Benchmark of the engine's overhead, with a kernel that does nothing: submit, batch and complete, on the
// calling thread and through a worker; and the choice of a variant, with and without a split, on one and two
// threads. Prints nanoseconds per ticket or request, best of several rounds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "engine/engine.hpp"
#include "engine/route/router.hpp"

namespace {

using namespace fused_mlp;
using Steady = std::chrono::steady_clock;

constexpr std::size_t kWidth = 64;

int run_nothing(void*, const float*, std::size_t, float*, unsigned, char*, std::size_t) { return 0; }
const char* name_nothing(void*, std::size_t) { return "nothing"; }
constexpr fused_mlp_kernel kNothing = {FUSED_MLP_KERNEL_ABI, 0, nullptr, kWidth, 10, run_nothing,
                                       name_nothing,         0, nullptr, nullptr};

class Counter final : public CompletionSink {
 public:
  void flush() noexcept override {}
  std::atomic<std::uint64_t> completed{0};
};

// Created once and submitted repeatedly, as by a front that recycles its tickets.
class NullTicket final : public Ticket {
 public:
  explicit NullTicket(Counter* counter) : Ticket(1, counter), counter_(counter) {}

 protected:
  void gather(float* dst) noexcept override { std::fill(dst, dst + kWidth, 1.0f); }
  void complete(const Outcome&) noexcept override {
    counter_->completed.store(counter_->completed.load(std::memory_order_relaxed) + 1,
                              std::memory_order_release);
  }

 private:
  Counter* counter_;
};

struct Bench {
  explicit Bench(unsigned workers) : engine(options(workers)), runner(engine) {
    LaneOptions lane_options;
    lane_options.in_features = kWidth;
    lane_options.out_features = 10;
    lane = engine.add_lane(lane_options, std::make_unique<CapsuleKernel>(&kNothing, nullptr));
    for (int i = 0; i < 64; ++i) tickets.push_back(make_ref<NullTicket>(&counter));
  }
  static EngineOptions options(unsigned workers) {
    EngineOptions result;
    result.workers = workers;
    return result;
  }
  void submit(int count, bool here) {
    const Nanos now = engine.clock().now();
    round.clear();
    for (int i = 0; i < count; ++i) {
      auto& ticket = tickets[static_cast<std::size_t>(i)];
      ticket->arrival_ns = now;
      round.push_back({lane.get(), Ref<Ticket>(Ref<NullTicket>(ticket))});
      lane->record(0, 1000);  // as a front does
    }
    if (here) return runner.submit(round);
    for (Submission& each : round) {
      if (engine.submit(*lane, std::move(each.ticket)) != Status::ok) std::abort();
    }
  }

  Counter counter;
  Engine engine;
  InlineRunner runner;
  std::shared_ptr<Lane> lane;
  std::vector<Ref<NullTicket>> tickets;
  std::vector<Submission> round;
};

template <class Step>
double best_ns_per_ticket(int tickets_per_step, int steps, Step step) {
  double best = 1e18;
  for (int round = 0; round < 7; ++round) {
    const auto start = Steady::now();
    for (int i = 0; i < steps; ++i) step();
    const std::chrono::duration<double, std::nano> took = Steady::now() - start;
    best = std::min(best, took.count() / (static_cast<double>(steps) * tickets_per_step));
  }
  return best;
}

// Every thread resolves a route for each request, as a loop of the native front does.
double choosing_ns(double split, bool by_key, unsigned threads) {
  constexpr int kRequests = 1'000'000;
  const Bench bench(1);
  RouteEntry entry;
  entry.model = "digits";
  entry.fused = entry.unfused = bench.lane;
  entry.split = Share(split);
  Router router;
  router.publish({entry});
  return best_ns_per_ticket(kRequests, 1, [&] {
    std::vector<std::thread> loops;
    for (unsigned i = 0; i < threads; ++i) {
      loops.emplace_back([&router, by_key] {
        const std::shared_ptr<const RouteTable> table = router.table();
        for (int request = 0; request < kRequests; ++request) {
          RouteQuery query{"digits"};
          if (by_key) query.key = hash_key("user-4711");
          if (!table->resolve(query).ok()) std::abort();
        }
      });
    }
    for (std::thread& loop : loops) loop.join();
  });
}

}  // namespace

int main() {
  for (const unsigned threads : {1u, 2u}) {
    std::printf("choosing a variant, %u threads: off %.1f ns, split by share %.1f, split by key %.1f\n",
                threads, choosing_ns(0, false, threads), choosing_ns(1e-6, false, threads),
                choosing_ns(1e-6, true, threads));
  }
  for (const int burst : {1, 8, 64}) {
    Bench bench(1);
    const double ns = best_ns_per_ticket(burst, 200'000 / burst, [&] {
      bench.submit(burst, true);
      while (bench.runner.run_ready()) {
      }
    });
    std::printf("caller runs, %2d at once: %7.0f ns per ticket\n", burst, ns);
  }
  for (const int burst : {1, 8, 64}) {
    Bench bench(1);
    std::uint64_t expected = 0;
    const double ns = best_ns_per_ticket(burst, 20'000 / burst, [&] {
      bench.submit(burst, false);
      expected += static_cast<std::uint64_t>(burst);
      while (bench.counter.completed.load(std::memory_order_acquire) < expected) std::this_thread::yield();
    });
    std::printf("one worker,  %2d at once: %7.0f ns per ticket\n", burst, ns);
  }
}
