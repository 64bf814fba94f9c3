// SPDX-License-Identifier: Apache-2.0
// Requests that cannot make their deadline, and the estimate by which they are judged. On a manual
// clock, with costs that the tests set; a puppet kernel takes no time unless its stage advances the clock.
#include "engine/cost.hpp"
#include "puppets.hpp"
#include "testing/check.hpp"

namespace fused_mlp::test {
namespace {

// ---- Deadlines ----

TEST(what_cannot_make_its_deadline_is_not_run_and_a_wrong_estimate_recovers) {
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
  CHECK_EQ(ask(6 * kMilli), Status::ok);  // too tight by the estimate, but not by half
  CHECK_EQ(ask(1 * kMilli), Status::deadline_expired);
  CHECK_EQ(rig.stages[0]->batches.size(), 2u);
  rig.stages[0]->during = {};  // it has become fast
  int refused = 0;
  while (ask(1 * kMilli) != Status::ok) CHECK(++refused < 100);
}

// A lane whose queue is known to take 100 ms: ten batches of 10 rows, all of flow 1.
struct BusyLane {
  BusyLane() {
    rig.stages[0]->during = [this] { rig.clock->advance(10 * kMilli); };
    rig.send(*lane, 1, 10);
    CHECK_EQ(rig.run_all(), 1);
    for (int i = 0; i < 10; ++i) CHECK_EQ(rig.submit(*lane, rig.of_flow(1, 10)), Status::ok);
  }
  Status ask(std::uint64_t flow, Nanos left) {
    auto probe = rig.of_flow(flow, 1);
    probe->deadline_ns = rig.clock->now() + left;
    return rig.submit(*lane, probe);
  }
  Rig rig;
  std::shared_ptr<Lane> lane = rig.add_lane(costing(0, 0, 10));
};

TEST(a_deadline_that_the_queue_cannot_meet_is_refused_at_once) {
  BusyLane busy;
  const auto& lane = busy.lane;
  CHECK_EQ(busy.ask(1, 20 * kMilli), Status::deadline_too_near);
  CHECK_EQ(lane->metrics().refused(Refusal::deadline), 1u);
  CHECK(lane->refusal_text(Status::deadline_too_near).find("100 rows are waiting") != std::string::npos);
  CHECK_EQ(busy.ask(1, 80 * kMilli), Status::ok);  // not surely
  CHECK_EQ(busy.ask(2, 20 * kMilli), Status::ok);  // another flow goes before most of them
}

TEST(a_deadline_centuries_away_is_not_refused) {
  BusyLane busy;
  CHECK_EQ(busy.ask(1, Nanos{1} << 61), Status::ok);
}

// ---- The estimate ----

TEST(estimate_follows_what_batches_took_and_not_a_single_outlier) {
  CostEstimate cost({1000.0, 100.0});
  CHECK_EQ(cost.of(10), 2000);
  CHECK_EQ(cost.fixed(10), 1000);
  CHECK_EQ(cost.rows_within(2000), 10u);
  CHECK_EQ(cost.rows_within(1000), 0u);
  CHECK_EQ(cost.rows_worth_fixed(), 10u);
  CHECK(!cost.known(10));
  for (int i = 0; i < 100; ++i) cost.correct(10, 4000);
  CHECK(cost.known(10));
  CHECK_EQ(cost.of(10), 4000);
  CHECK_EQ(cost.of(1000), 202'000);  // sizes not seen follow the nearest
  cost.correct(10, 1'000'000'000);   // the thread did not have its core
  CHECK(cost.of(10) < 5000);
}

TEST(estimate_without_a_measurement_is_learned_from_the_first_batch) {
  CostEstimate cost({});
  CHECK_EQ(cost.of(1000), 0);
  CHECK(cost.rows_within(1) > 1'000'000);
  cost.correct(8, 16'000);
  CHECK_EQ(cost.of(8), 16'000);
  CHECK(cost.of(64) > 60'000);
}

TEST(measured_cost_has_a_fixed_part_and_a_part_per_row) {
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

TEST(refusals_do_not_change_what_a_batch_is_charged_or_who_runs_it) {
  CostEstimate cost({1000.0, 100.0});
  for (int i = 0; i < 1000; ++i) cost.doubt();
  CHECK_EQ(cost.of(10), 2000);
  CHECK_EQ(cost.rows_within(2000), 10u);
  CHECK(cost.trust() < 0.01);
  cost.correct(10, 2000);  // a batch was run: believed again
  CHECK_EQ(cost.trust(), 1.0);
}

}  // namespace
}  // namespace fused_mlp::test
