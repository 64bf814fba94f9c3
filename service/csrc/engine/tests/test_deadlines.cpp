// SPDX-License-Identifier: Apache-2.0
// Requests that cannot make their deadline, and the estimate by which they are judged. On a manual
// clock, with costs that the tests set; a puppet kernel takes no time unless its stage advances the clock.
#include <doctest/doctest.h>

#include "engine/run/cost.hpp"
#include "puppets.hpp"

namespace fused_mlp::test {
namespace {

// ---- Deadlines ----

TEST_CASE("what cannot make its deadline is not run and a wrong estimate recovers") {
  Rig rig;
  auto lane = rig.add_lane();
  rig.stages[0]->during = [&] { rig.clock->advance(10 * kMilli); };
  rig.send(*lane, 1);
  CHECK_EQ(rig.run_all(), 1);
  const auto ask = [&](Nanos left) {
    auto probe = rig.ticket(1);
    probe->deadline_ns = rig.clock->now() + left;
    CHECK_EQ(rig.submit(*lane, probe), Status::ok);
    CHECK_EQ(rig.run_all(), 1);
    return probe->outcome.status;
  };
  CHECK_EQ(ask(12 * kMilli), Status::ok);
  CHECK_EQ(ask(6 * kMilli), Status::deadline_expired);
  CHECK_EQ(rig.stages[0]->batches.size(), 2u);
  rig.stages[0]->during = {};  // it has become fast
  int refused = 0;
  while (ask(1 * kMilli) != Status::ok) CHECK(++refused < 100);
}

// A lane whose queue is known to take 100 ms: ten batches of 10 rows, all of flow 1, due in 250 ms.
struct BusyLane {
  BusyLane() {
    rig.stages[0]->during = [this] { rig.clock->advance(10 * kMilli); };
    rig.send(*lane, 1, 10);
    CHECK_EQ(rig.run_all(), 1);
    for (int i = 0; i < 10; ++i) CHECK_EQ(ask(1, 250 * kMilli, 10), Status::ok);
  }
  Status ask(std::uint64_t flow, Nanos left, std::uint32_t rows = 1) {
    auto probe = rig.of_flow(flow, rows);
    probe->deadline_ns = rig.clock->now() + left;
    return rig.submit(*lane, probe);
  }
  Rig rig;
  std::shared_ptr<Lane> lane = rig.add_lane(costing(0, 0, 10));
};

TEST_CASE("a deadline that the queue cannot meet is refused at once") {
  BusyLane busy;
  const auto& lane = busy.lane;
  CHECK_EQ(busy.ask(1, 130 * kMilli), Status::deadline_too_near);
  CHECK_EQ(lane->metrics->refused(Refusal::deadline), 1u);
  CHECK(lane->refusal_text(Status::deadline_too_near).find("100 rows are waiting") != std::string::npos);
  CHECK_EQ(busy.ask(1, 150 * kMilli), Status::ok);
  CHECK_EQ(busy.ask(2, 20 * kMilli), Status::ok);  // another flow goes before most of them
}

TEST_CASE("a deadline centuries away is not refused") {
  BusyLane busy;
  CHECK_EQ(busy.ask(1, Nanos{1} << 61), Status::ok);
}

// A lane whose rows take a millisecond each, one after the other.
struct SlowLane {
  explicit SlowLane(std::uint32_t max_batch_rows = 1, std::uint32_t target_queue_ms = 0) {
    LaneOptions options = costing(0, 1000, max_batch_rows);
    options.target_queue_ms = target_queue_ms;
    lane = rig.add_lane(options);
  }
  Status ask(Nanos left, std::uint32_t rows = 1, std::uint64_t flow = 0) {
    auto probe = rig.of_flow(flow, rows);
    if (left != 0) probe->deadline_ns = rig.clock->now() + left;
    return rig.submit(*lane, probe);
  }
  // How many of one row are accepted.
  int fill(Nanos left) {
    int accepted = 0;
    while (ask(left) == Status::ok) CHECK(++accepted < 1000);
    return accepted;
  }
  Rig rig;
  std::shared_ptr<Lane> lane;
};

TEST_CASE("a batch has only as many rows as end before its earliest deadline") {
  SlowLane slow(64);
  CHECK_EQ(slow.ask(4500 * kMicro), Status::ok);
  for (int i = 0; i < 7; ++i) CHECK_EQ(slow.ask(0), Status::ok);
  CHECK_EQ(slow.rig.run_all(), 2);
  CHECK_EQ(slow.rig.stages[0]->batches, (std::vector<std::size_t>{4, 4}));
}

TEST_CASE("the request that is due first goes first on its connection") {
  SlowLane slow;
  CHECK_EQ(slow.ask(0, 2), Status::ok);
  CHECK_EQ(slow.ask(0, 3), Status::ok);
  CHECK_EQ(slow.ask(200 * kMilli, 4), Status::ok);
  CHECK_EQ(slow.ask(20 * kMilli, 1), Status::ok);
  CHECK_EQ(slow.rig.run_all(), 4);
  CHECK_EQ(slow.rig.stages[0]->batches, (std::vector<std::size_t>{1, 4, 2, 3}));
}

TEST_CASE("what is accepted ends in time and the rest is refused at once") {
  SlowLane slow;
  slow.rig.stages[0]->during = [&] { slow.rig.clock->advance(kMilli); };
  const int accepted = slow.fill(30 * kMilli);
  CHECK((accepted >= 20 && accepted < 30));
  CHECK_EQ(slow.rig.run_all(), accepted);
  CHECK_EQ(slow.lane->metrics->refused(Refusal::deadline), 1u);  // none expired
  CHECK_EQ(slow.lane->metrics->wasted_rows(), 0u);
}

TEST_CASE("an urgent request is refused where it would break an earlier promise") {
  SlowLane slow;
  slow.fill(100 * kMilli);
  CHECK_EQ(slow.ask(10 * kMilli), Status::deadline_too_near);
  CHECK_EQ(slow.ask(10 * kMilli, 1, 2), Status::ok);  // a connection that has its share to come
}

TEST_CASE("urgent and patient requests share a lane") {
  SlowLane slow;
  for (int i = 0; i < 40; ++i) CHECK_EQ(slow.ask(100 * kMilli), Status::ok);
  CHECK_EQ(slow.ask(10 * kMilli), Status::ok);
}

TEST_CASE("a request without a deadline waits for no longer than the target") {
  SlowLane slow(1, 10);
  CHECK_EQ(slow.fill(0), 8);
  CHECK_EQ(slow.lane->metrics->refused(Refusal::queue_full), 1u);
  CHECK_EQ(slow.ask(0, 1, 2), Status::ok);  // fair between connections
}

TEST_CASE("other models take their share of the time") {
  SlowLane alone, beside;
  CHECK_EQ(alone.ask(4 * kMilli), Status::ok);
  CHECK_EQ(alone.ask(3 * kMilli), Status::ok);
  auto heavy = beside.rig.add_lane(costing(0, 1000, 1));
  for (int i = 0; i < 100; ++i) beside.rig.send(*heavy, 1);
  CHECK_EQ(beside.ask(4 * kMilli), Status::ok);
  CHECK_EQ(beside.ask(3 * kMilli), Status::deadline_too_near);
  CHECK_EQ(beside.ask(6 * kMilli), Status::ok);
}

// ---- The estimate ----

TEST_CASE("estimate follows what batches took and not a single outlier") {
  CostEstimate cost({1000.0, 100.0});
  CHECK_EQ(cost.of(10), 2000);
  CHECK_EQ(cost.fixed(10), 1000);
  CHECK_EQ(cost.rows_within(2000), 10u);
  CHECK_EQ(cost.rows_within(1000), 0u);
  CHECK_EQ(cost.rows_worth_fixed(), 10u);
  for (int i = 0; i < 100; ++i) cost.correct(10, 4000);
  CHECK_EQ(cost.of(10), 4000);
  CHECK_EQ(cost.of(1000), 202'000);  // sizes not seen follow the nearest
  cost.correct(10, 1'000'000'000);   // the thread did not have its core
  CHECK(cost.of(10) < 5000);
}

TEST_CASE("estimate without a measurement is learned from the first batch") {
  CostEstimate cost({});
  CHECK_EQ(cost.of(1000), 0);
  CHECK(cost.rows_within(1) > 1'000'000);
  cost.correct(8, 16'000);
  CHECK_EQ(cost.of(8), 16'000);
  CHECK(cost.of(64) > 60'000);
}

TEST_CASE("measured cost has a fixed part and a part per row") {
  ManualClock clock;
  auto stage = std::make_shared<Stage>();
  PuppetKernel kernel(stage, 2);
  stage->during = [&] { clock.advance(500 + 10 * static_cast<Nanos>(stage->batches.back())); };
  const Cost cost = measure_cost(kernel, 2, 1, clock);
  CHECK_EQ(cost.fixed_ns, 500.0);
  CHECK_EQ(cost.row_ns, 10.0);
  stage->fail_next = true;
  CHECK_EQ(measure_cost(kernel, 2, 1, clock).row_ns, 0.0);
}

TEST_CASE("the pace follows elapsed time and changes neither charges nor who runs a batch") {
  CostEstimate cost({1000.0, 100.0});
  CHECK_EQ(cost.elapsed(10), 2000);
  for (int i = 0; i < 100; ++i) cost.keep_pace(2000, 5000);  // the thread had 40 % of a core
  CHECK((cost.elapsed(10) > 4900 && cost.elapsed(10) <= 5000));
  CHECK_EQ(cost.of(10), 2000);
  CHECK_EQ(cost.rows_within(2000), 10u);
  for (int i = 0; i < 1000; ++i) cost.doubt();
  CHECK(cost.elapsed(10) < 100);
  for (int i = 0; i < 100; ++i) cost.keep_pace(2000, 2000);
  CHECK(cost.elapsed(10) > 1900);
}

std::uint64_t wasted_ns(const Lane& lane) { return lane.metrics->sum(&LaneCounts::wasted_ns); }

std::uint64_t queued_long(const Lane& lane) { return lane.metrics->sum(&LaneCounts::queued_long); }

TEST_CASE("kernel time for callers that are gone is counted as wasted") {
  Rig rig;
  auto lane = rig.add_lane();
  auto stays = rig.ticket(1, 3), cancels = rig.ticket(2, 2), expires = rig.ticket(3, 1);
  expires->deadline_ns = rig.clock->now() + 30 * kMilli;
  for (const auto& each : {stays, cancels, expires}) CHECK_EQ(rig.submit(*lane, each), Status::ok);
  rig.stages[0]->during = [&] {
    cancels->cancel();
    rig.clock->advance(60 * kMilli);
  };
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(wasted_ns(*lane), 30'000'000u);  // of three rows of six
}

TEST_CASE("requests that spend most of their deadline in the queue are counted") {
  Rig rig;
  auto lane = rig.add_lane();
  auto patient = rig.ticket(1), hurried = rig.ticket(2), expired = rig.ticket(3), endless = rig.ticket(4);
  patient->deadline_ns = rig.clock->now() + 100 * kMilli;
  hurried->deadline_ns = rig.clock->now() + 50 * kMilli;
  expired->deadline_ns = rig.clock->now() + 20 * kMilli;
  for (const auto& each : {patient, hurried, expired, endless}) CHECK_EQ(rig.submit(*lane, each), Status::ok);
  rig.clock->advance(30 * kMilli);
  rig.run_all();
  CHECK_EQ(queued_long(*lane), 2u);
}

}  // namespace
}  // namespace fused_mlp::test
