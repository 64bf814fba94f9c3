// SPDX-License-Identifier: Apache-2.0
// The order of the requests of a lane, and of lanes. On a manual
// clock, with costs that the tests set; a puppet kernel takes no time unless its stage advances the clock.

#include <doctest/doctest.h>

#include <algorithm>

#include "puppets.hpp"

namespace fused_mlp::test {
namespace {

using Sizes = std::vector<std::size_t>;

// ---- Order within a lane ----

TEST_CASE("a small request does not wait for the large ones of another flow") {
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

TEST_CASE("a large request waits for as many rows of the other flow at most") {
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

TEST_CASE("flows take turns and each keeps its order") {
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

TEST_CASE("flows share a lane by their weights") {
  Rig rig;
  auto lane = rig.add_lane(costing(0, 0, 1));
  std::vector<Ref<Probe>> heavy, light;
  for (int i = 0; i < 30; ++i) {
    for (auto* const probes : {&light, &heavy}) {
      probes->push_back(rig.of_flow(probes == &heavy ? 1 : 2, 1));
      probes->back()->weight = probes == &heavy ? 3 : 0.5;
      CHECK_EQ(rig.submit(*lane, probes->back()), Status::ok);
    }
  }
  for (int i = 0; i < 28; ++i) CHECK(rig.runner.run_ready());
  const auto done = [](const std::vector<Ref<Probe>>& probes) {
    return std::count_if(probes.begin(), probes.end(), [](const auto& each) { return each->completed != 0; });
  };
  CHECK_EQ(done(heavy), 24);  // six times the rows of the other
  CHECK_EQ(done(light), 4);
}

TEST_CASE("thousands of flows are kept apart") {
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
  CHECK_EQ(lane->queued_rows.load(), 0u);
}

TEST_CASE("a queue filled by one connection has room for another") {
  Rig rig;
  LaneOptions options;
  options.queue_rows = 100;
  auto lane = rig.add_lane(options);
  CHECK_EQ(rig.submit(*lane, rig.of_flow(1, 100)), Status::ok);
  CHECK_EQ(rig.submit(*lane, rig.of_flow(1, 1)), Status::overloaded);
  CHECK_EQ(rig.submit(*lane, rig.of_flow(2, 50)), Status::ok);
  CHECK_EQ(rig.submit(*lane, rig.of_flow(2, 1)), Status::overloaded);  // a third of 100 by now
  for (std::uint64_t flow = 3; flow < 100; ++flow) rig.submit(*lane, rig.of_flow(flow, 1));
  CHECK(lane->queued_rows.load() <= 200);
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
      lanes[i]->account->weight = weights[i];
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
        while (lane->queued_rows.load() < 2) rig.send(*lane, 1);
      }
      CHECK(rig.runner.run_ready());
    }
  }
  Rig rig;
  std::vector<std::shared_ptr<Lane>> lanes;
  std::vector<Nanos> used;
};

TEST_CASE("lanes share the time not the batches") {
  Contest contest({1000, 10}, {1, 1});
  contest.run(200);  // learns
  contest.run(1010);
  CHECK(std::abs(static_cast<double>(contest.used[0]) / static_cast<double>(contest.used[1]) - 1) < 0.15);
}

TEST_CASE("a weight gives a lane a larger share") {
  Contest contest({100, 100}, {3, 1});
  contest.run(40);
  contest.run(400);
  CHECK(std::abs(static_cast<double>(contest.used[0]) / static_cast<double>(contest.used[1]) - 3) < 0.2);
}

TEST_CASE("the lanes of a model share its weight") {
  Contest contest({100, 100, 100}, {1, 1, 1}, {"one", "one", "two"});
  contest.run(40);
  contest.run(400);
  CHECK_EQ(contest.lanes[0]->account->weight.load(), 1.0);
  const auto of_one = static_cast<double>(contest.used[0] + contest.used[1]);
  CHECK(std::abs(of_one / static_cast<double>(contest.used[2]) - 1) < 0.1);
  CHECK(std::abs(static_cast<double>(contest.used[0]) / static_cast<double>(contest.used[1]) - 1) < 0.1);
  contest.lanes[1]->account->weight = 3;
  CHECK_EQ(contest.lanes[0]->account->weight.load(), 3.0);
  CHECK_EQ(contest.lanes[2]->account->weight.load(), 1.0);
}

TEST_CASE("an idle lane saves up nothing") {
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
  CHECK((turns >= 8 && turns <= 12));
}

TEST_CASE("a new lane is not put behind those that wait by one that loops serve") {
  Rig rig(1);
  auto saturated = rig.add_lane(costing(0, 200, 1)), light = rig.add_lane(costing(0, 10, 1)),
       late = rig.add_lane(costing(0, 200, 1));
  light->account->weight = 0.01;
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

TEST_CASE("the nearest deadline goes first in the same share") {
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
