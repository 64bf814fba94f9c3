// SPDX-License-Identifier: Apache-2.0
// Goodput under overload, simulated on a manual clock: requests arrive at a fixed mean rate whether or not
// others are answered, one worker computes, and a kernel takes exactly as long as its cost says. Figures are
// exact and the same on every machine; they show what admission and the choice of batches do, without the
// time that a front takes.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/run/batch_runner.hpp"
#include "engine/run/busy_threads.hpp"
#include "engine/schedule/scheduler.hpp"
#include "engine/shadow/shadow_worker.hpp"
#include "puppets.hpp"

namespace fused_mlp::test {
namespace {

constexpr Nanos kWire = 200'000;  // from the end of a batch until a caller has its answer
constexpr Nanos kSecond = 1'000'000'000;

// Requests by how they ended.
struct Counts {
  std::uint64_t offered = 0, in_time = 0, late = 0, refused = 0, dropped = 0;
  std::uint64_t computed = 0, wasted = 0;  // rows
  Nanos longest = 0, took = 0;             // the longest time to an answer; until all had ended
  double goodput() const { return static_cast<double>(in_time) * 1e9 / static_cast<double>(took); }
};

class Call final : public Ticket {
 public:
  Call(std::uint32_t rows, const Clock& clock, Counts& tally)
      : Ticket(rows, nullptr), clock_(clock), tally_(tally) {}

 protected:
  void gather(float* x) noexcept override { std::fill_n(x, rows() * Rig::kWidth, 1.0f); }
  void complete(const Outcome& outcome) noexcept override {
    const bool in_time = deadline_ns == 0 || clock_.now() + kWire <= deadline_ns;
    ++(outcome.status != Status::ok ? tally_.dropped : in_time ? tally_.in_time : tally_.late);
    if (outcome.status == Status::ok) tally_.longest = std::max(tally_.longest, clock_.now() - arrival_ns);
  }

 private:
  const Clock& clock_;
  Counts& tally_;
};

// Requests for one model, at `rate` a second; their deadlines take turns. 0: none.
struct Stream {
  Lane* lane;
  double rate;
  std::uint32_t rows;
  std::vector<Nanos> deadlines;
  double next = 0;  // when the next one arrives
  std::uint64_t sent = 0;
};

class Simulation {
 public:
  Simulation() { usable_cores = 1; }
  ~Simulation() { usable_cores = cores_before_; }
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  Lane& add_lane(Cost cost, std::uint32_t target_queue_ms = 0) {
    LaneOptions options;
    options.in_features = Rig::kWidth;
    options.out_features = 1;
    options.max_batch_rows = 256;
    options.queue_rows = 8192;
    options.target_queue_ms = target_queue_ms;
    options.cost = cost;
    auto stage = std::make_shared<Stage>();
    lanes_.push_back(std::make_shared<Lane>(options, std::make_unique<PuppetKernel>(stage, Rig::kWidth)));
    stage->during = [this, cost, stage = stage.get()] {
      tally_.computed += stage->batches.back();
      pass(static_cast<Nanos>(cost.fixed_ns + cost.row_ns * static_cast<double>(stage->batches.back())));
    };
    scheduler_.add(*lanes_.back());
    return *lanes_.back();
  }

  // Until all that arrived within `duration` has ended.
  Counts run(std::vector<Stream> streams, Nanos duration) {
    const Nanos begin = clock_.now();
    tally_ = {};
    streams_ = std::move(streams);
    for (Stream& stream : streams_) stream.next = static_cast<double>(begin) + gap(stream);
    end_ = begin + duration;
    while (clock_.now() < end_ || scheduler_.outstanding() > 0) {
      if (!run_batch()) pass(std::max<Nanos>(1, next_arrival() - clock_.now()));
    }
    tally_.took = clock_.now() - begin;
    for (const auto& lane : lanes_) tally_.wasted += lane->metrics->wasted_rows();
    return tally_;
  }

 private:
  bool run_batch() {
    TakenBatch batch;
    if (scheduler_.wait_take(batch, clock_.now()) != Scheduler::Wait::taken) return false;
    const std::size_t tickets = runner_.run(batch);
    scheduler_.finished(batch, tickets, nullptr);
    return true;
  }

  Nanos next_arrival() const {
    double first = static_cast<double>(end_);
    for (const Stream& stream : streams_) first = std::min(first, stream.next);
    return static_cast<Nanos>(first);
  }

  // Time passes, and what arrives meanwhile is submitted.
  void pass(Nanos time) {
    const Nanos until = clock_.now() + time;
    for (Nanos next; (next = next_arrival()) < std::min(until, end_);) {
      clock_.advance(std::max<Nanos>(0, next - clock_.now()));
      for (Stream& stream : streams_) {
        if (static_cast<Nanos>(stream.next) <= next) arrive(stream);
      }
    }
    clock_.advance(until - clock_.now());
  }

  void arrive(Stream& stream) {
    auto call = make_ref<Call>(stream.rows, clock_, tally_);
    const Nanos deadline = stream.deadlines[stream.sent++ % stream.deadlines.size()];
    if (deadline != 0) call->deadline_ns = clock_.now() + deadline;
    call->flow = ++flows_ % 8;
    ++tally_.offered;
    Submission one{stream.lane, Ref<Ticket>(std::move(call))};
    scheduler_.submit({&one, 1}, nullptr);
    tally_.refused += one.status != Status::ok;
    stream.next += gap(stream);
  }

  // Until the next request, at random: as of very many callers.
  double gap(const Stream& stream) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return -std::log((static_cast<double>(random_ >> 11) + 0.5) * 0x1p-53) * 1e9 / stream.rate;
  }

  const unsigned cores_before_ = usable_cores;
  ManualClock clock_;
  Scheduler scheduler_{clock_, 1};
  ShadowWorker shadow_{clock_, scheduler_, {}};
  const BatchRunner::ErrorHook on_error_;
  BatchRunner runner_{clock_, on_error_, shadow_};
  std::vector<std::shared_ptr<Lane>> lanes_;
  std::vector<Stream> streams_;
  Counts tally_;
  Nanos end_ = 0;
  std::uint64_t random_ = 1, flows_ = 0;
};

// 16 rows of the large one take 0.6 ms.
constexpr Cost kLarge{100e3, 33e3}, kSmall{4e3, 300};

// Requests a second that one lane can answer, if they may wait for long.
double capacity_of(Cost cost, std::uint32_t rows, Nanos duration) {
  Simulation simulation;
  Lane& lane = simulation.add_lane(cost);
  return simulation.run({{&lane, 1.2e9 / (cost.row_ns * rows), rows, {100 * kSecond}}}, duration).goodput();
}

// Checks goodput at 1.2, 3 and 10 times capacity, of one lane or shared by several.
void check_goodput(Cost cost, std::uint32_t rows, const std::vector<Nanos>& deadlines, Nanos duration,
                   std::array<double, 3> least = {0.95, 0.9, 0.9}, std::size_t lanes = 1) {
  const double capacity = capacity_of(cost, rows, duration);
  for (std::size_t i = 0; i < least.size(); ++i) {
    Simulation simulation;
    std::vector<Stream> streams;
    const double rate = std::array{1.2, 3.0, 10.0}[i] * capacity / static_cast<double>(lanes);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      streams.push_back({&simulation.add_lane(cost), rate, rows, deadlines});
    }
    const Counts tally = simulation.run(std::move(streams), duration);
    CHECK(tally.goodput() >= least[i] * capacity);
    CHECK(tally.wasted <= 0.05 * static_cast<double>(tally.computed));
    // Nearly all that are not answered are refused at once: few wait for nothing.
    CHECK(tally.dropped <= 0.2 * static_cast<double>(tally.offered));
    CHECK(tally.in_time + tally.late + tally.refused + tally.dropped == tally.offered);
  }
}

TEST_CASE("goodput stays at capacity under overload") {
  for (const Nanos deadline : {4 * kMilli, 10 * kMilli, 50 * kMilli, 200 * kMilli}) {
    check_goodput(kLarge, 16, {deadline}, kSecond);
  }
}

// With no more than that, hardly one request can wait: when none comes for a while, the worker is idle.
TEST_CASE("goodput stays high with deadlines of three times the time of a request") {
  check_goodput(kLarge, 16, {1900 * kMicro}, kSecond, {0.8, 0.95, 0.95});
}

TEST_CASE("goodput stays at capacity with mixed deadlines") {
  check_goodput(kLarge, 16, {4 * kMilli, 10 * kMilli, 50 * kMilli, 200 * kMilli}, kSecond);
}

TEST_CASE("goodput of several models stays at capacity") {
  for (const Nanos deadline : {10 * kMilli, 50 * kMilli}) {
    check_goodput(kLarge, 16, {deadline}, kSecond, {0.95, 0.9, 0.9}, 2);
  }
}

TEST_CASE("goodput of a small model stays at capacity") {
  for (const Nanos deadline : {1 * kMilli, 10 * kMilli}) check_goodput(kSmall, 1, {deadline}, 10 * kMilli);
}

TEST_CASE("requests without deadlines wait no longer than the target") {
  const double capacity = capacity_of(kLarge, 16, kSecond);
  Simulation simulation;
  Lane& lane = simulation.add_lane(kLarge, 200);
  const Counts tally = simulation.run({{&lane, 3 * capacity, 16, {0}}}, 2 * kSecond);
  CHECK(tally.goodput() >= 0.95 * capacity);
  CHECK(tally.longest <= 220 * kMilli);
}

TEST_CASE("a queue is short again soon after an overload") {
  const double capacity = capacity_of(kLarge, 16, kSecond);
  Simulation simulation;
  Lane& lane = simulation.add_lane(kLarge);
  simulation.run({{&lane, 10 * capacity, 16, {50 * kMilli}}}, kSecond);
  const Counts after = simulation.run({{&lane, 0.5 * capacity, 16, {50 * kMilli}}}, 100 * kMilli);
  CHECK_EQ(after.in_time, after.offered);
}

}  // namespace
}  // namespace fused_mlp::test
