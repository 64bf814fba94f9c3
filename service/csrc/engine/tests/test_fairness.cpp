// SPDX-License-Identifier: Apache-2.0
// The order of the requests of a lane, and of lanes. On a manual
// clock, with costs that the tests set; a puppet kernel takes no time unless its stage advances the clock.

#include "puppets.hpp"
#include "testing/check.hpp"

namespace fused_mlp::test {
namespace {

using Sizes = std::vector<std::size_t>;

// ---- Order within a lane ----

TEST(a_small_request_does_not_wait_for_the_large_ones_of_another_flow) {
  Rig rig;
  auto lane = rig.add_lane(costing(0, 0, 4));
  for (std::uint64_t flow = 1; flow <= 3; ++flow) {
    for (int i = 0; i < 2; ++i) CHECK_EQ(rig.submit(*lane, rig.of_flow(flow, 9)), Status::ok);
  }
  CHECK(rig.runner.run_ready());
  auto small = rig.of_flow(4, 1);
  CHECK_EQ(rig.submit(*lane, small), Status::ok);
  CHECK(rig.runner.run_ready());
  CHECK_EQ(small->completed.load(), 1);
  CHECK_EQ(rig.stages[0]->batches, (Sizes{9, 1}));
}

TEST(a_large_request_waits_for_as_many_rows_of_the_other_flow_at_most) {
  Rig rig;
  auto lane = rig.add_lane(costing(0, 0, 1));
  auto large = rig.of_flow(1, 8);
  CHECK_EQ(rig.submit(*lane, large), Status::ok);
  for (int i = 0; i < 30; ++i) CHECK_EQ(rig.submit(*lane, rig.of_flow(2, 1)), Status::ok);
  int before = 0;
  while (large->completed.load() == 0) {
    CHECK(rig.runner.run_ready());
    ++before;
  }
  CHECK(before <= 9);
}

TEST(flows_take_turns_and_each_keeps_its_order) {
  Rig rig;
  auto lane = rig.add_lane(costing(0, 0, 1));
  std::vector<Ref<Probe>> of_one;
  for (int i = 0; i < 6; ++i) {
    of_one.push_back(rig.of_flow(1, 1));
    CHECK_EQ(rig.submit(*lane, of_one.back()), Status::ok);
  }
  auto first = rig.of_flow(2, 1), second = rig.of_flow(2, 1);
  CHECK_EQ(rig.submit(*lane, first), Status::ok);
  CHECK_EQ(rig.submit(*lane, second), Status::ok);
  for (int i = 0; i < 4; ++i) CHECK(rig.runner.run_ready());
  CHECK_EQ(first->completed.load() + second->completed.load(), 2);
  CHECK_EQ(of_one[0]->completed.load() + of_one[1]->completed.load(), 2);
  CHECK_EQ(of_one[2]->completed.load(), 0);
}

TEST(thousands_of_flows_are_kept_apart) {
  Rig rig;
  auto lane = rig.add_lane(costing(0, 0, 1));
  std::vector<Ref<Probe>> first, second;
  for (std::uint64_t flow = 0; flow < 2000; ++flow) {
    for (auto* const probes : {&first, &second}) {  // each flow: one after the other
      probes->push_back(rig.of_flow(flow * 977, 1));
      CHECK_EQ(rig.submit(*lane, probes->back()), Status::ok);
    }
  }
  for (std::size_t i = 0; i < first.size(); ++i) CHECK(rig.runner.run_ready());
  for (const auto& probe : first) CHECK_EQ(probe->completed.load(), 1);
  for (const auto& probe : second) CHECK_EQ(probe->completed.load(), 0);
  CHECK_EQ(rig.run_all(), 2000);
  CHECK_EQ(lane->queued_rows(), 0u);
}

TEST(a_queue_filled_by_one_connection_has_room_for_another) {
  Rig rig;
  LaneOptions options;
  options.queue_rows = 100;
  auto lane = rig.add_lane(options);
  CHECK_EQ(rig.submit(*lane, rig.of_flow(1, 100)), Status::ok);
  CHECK_EQ(rig.submit(*lane, rig.of_flow(1, 1)), Status::overloaded);
  CHECK_EQ(rig.submit(*lane, rig.of_flow(2, 50)), Status::ok);
  CHECK_EQ(rig.submit(*lane, rig.of_flow(2, 1)), Status::overloaded);  // a third of 100 by now
  for (std::uint64_t flow = 3; flow < 100; ++flow) rig.submit(*lane, rig.of_flow(flow, 1));
  CHECK(lane->queued_rows() <= 200);
}

// ---- Lanes ----

struct Contest {
  // Both lanes always have tickets, one row per batch; `us` is what a batch takes.
  Contest(std::vector<Nanos> us, std::vector<double> weights, std::vector<std::string> models = {}) {
    models.resize(us.size());
    for (std::size_t i = 0; i < us.size(); ++i) {
      LaneOptions options = costing(0, 0, 1);
      options.model = models[i];
      lanes.push_back(rig.add_lane(options));
      lanes[i]->set_weight(weights[i]);
      rig.stages[i]->during = [this, i, us] {
        rig.clock->advance(us[i] * kMicro);
        used[i] += us[i];
      };
    }
  }
  void run(int batches) {
    used.assign(lanes.size(), 0);
    for (int n = 0; n < batches; ++n) {
      for (auto& lane : lanes) {
        while (lane->queued_rows() < 2) rig.send(*lane, 1);
      }
      CHECK(rig.runner.run_ready());
    }
  }
  Rig rig;
  std::vector<std::shared_ptr<Lane>> lanes;
  std::vector<Nanos> used;
};

TEST(lanes_share_the_time_not_the_batches) {
  Contest contest({1000, 10}, {1, 1});
  contest.run(200);  // learns
  contest.run(1010);
  CHECK(std::abs(static_cast<double>(contest.used[0]) / static_cast<double>(contest.used[1]) - 1) < 0.15);
}

TEST(a_weight_gives_a_lane_a_larger_share) {
  Contest contest({100, 100}, {3, 1});
  contest.run(40);
  contest.run(400);
  CHECK(std::abs(static_cast<double>(contest.used[0]) / static_cast<double>(contest.used[1]) - 3) < 0.2);
}

TEST(the_lanes_of_a_model_share_its_weight) {
  Contest contest({100, 100, 100}, {1, 1, 1}, {"one", "one", "two"});
  contest.run(40);
  contest.run(400);
  CHECK_EQ(contest.lanes[0]->weight(), 1.0);
  const auto of_one = static_cast<double>(contest.used[0] + contest.used[1]);
  CHECK(std::abs(of_one / static_cast<double>(contest.used[2]) - 1) < 0.1);
  CHECK(std::abs(static_cast<double>(contest.used[0]) / static_cast<double>(contest.used[1]) - 1) < 0.1);
  contest.lanes[1]->set_weight(3);
  CHECK_EQ(contest.lanes[0]->weight(), 3.0);
  CHECK_EQ(contest.lanes[2]->weight(), 1.0);
}

TEST(an_idle_lane_saves_up_nothing) {
  Contest contest({100, 100}, {1, 1});
  auto late = contest.rig.add_lane(costing(0, 0, 1));
  contest.run(200);
  int turns = 0;
  contest.rig.stages[2]->during = [&] {
    contest.rig.clock->advance(100 * kMicro);
    ++turns;
  };
  for (int i = 0; i < 50; ++i) contest.rig.send(*late, 1);
  contest.run(30);
  CHECK(turns >= 8 && turns <= 12);
}

TEST(a_new_lane_is_not_put_behind_those_that_wait_by_one_that_loops_serve) {
  Rig rig(1);
  auto saturated = rig.add_lane(costing(0, 200, 1)), light = rig.add_lane(costing(0, 10, 1)),
       late = rig.add_lane(costing(0, 200, 1));
  light->set_weight(0.01);
  rig.stages[0]->during = [&] { rig.clock->advance(200 * kMicro); };
  rig.stages[1]->during = [&] { rig.clock->advance(10 * kMicro); };
  rig.stages[0]->hold();  // the worker
  rig.send(*saturated, 1);
  rig.stages[0]->wait_running(1);
  for (int i = 0; i < 10; ++i) rig.send(*saturated, 1);
  for (int i = 0; i < 20; ++i) {
    rig.send(*light, 1);
    CHECK(rig.runner.run_ready());
  }
  auto ticket = rig.ticket(1);
  CHECK_EQ(rig.submit(*late, ticket), Status::ok);
  std::size_t before_it = 0;
  rig.stages[2]->during = [&] {
    const std::lock_guard lock(rig.stages[0]->mutex);
    before_it = rig.stages[0]->batches.size();
  };
  rig.stages[0]->release();
  rig.inbox.wait_for(1 + 10 + 20 + 1);
  CHECK(before_it <= 3);
}

TEST(the_nearest_deadline_goes_first_in_the_same_share) {
  Rig rig;
  auto patient = rig.add_lane(), urgent = rig.add_lane();
  auto later = rig.ticket(1), sooner = rig.ticket(2);
  later->deadline_ns = rig.clock->now() + 50 * kMilli;
  sooner->deadline_ns = rig.clock->now() + 5 * kMilli;
  CHECK_EQ(rig.submit(*patient, later), Status::ok);
  CHECK_EQ(rig.submit(*urgent, sooner), Status::ok);
  CHECK(rig.runner.run_ready());
  CHECK_EQ(sooner->completed.load(), 1);
  CHECK_EQ(later->completed.load(), 0);
}

}  // namespace
}  // namespace fused_mlp::test
