// SPDX-License-Identifier: Apache-2.0
// Which requests event loops run themselves, keep, or leave to others. On a manual
// clock, with costs that the tests set; a puppet kernel takes no time unless its stage advances the clock.
#include <doctest/doctest.h>

#include <thread>

#include "engine/run/busy_threads.hpp"
#include "puppets.hpp"

namespace fused_mlp::test {
namespace {

using Sizes = std::vector<std::size_t>;

TEST_CASE("event loop leaves a long batch to a worker") {
  Rig rig(1);
  auto lane = rig.add_lane(costing(0, 60));
  rig.clock->wait_asleep(1);
  CHECK_EQ(rig.submit_here(*lane, rig.ticket(1, 2)), Status::ok);  // 120 us
  CHECK_EQ(rig.run_all(), 0);
  rig.inbox.wait_for(1);
  rig.clock->wait_asleep(1);
  CHECK_EQ(rig.submit_here(*lane, rig.ticket(1, 1)), Status::ok);  // 60 us
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(rig.clock->sleeps(), 2);
}

TEST_CASE("event loop runs as many requests at once as fit") {
  Rig rig(1);
  auto lane = rig.add_lane(costing(10, 30));
  rig.clock->wait_asleep(1);
  for (int i = 0; i < 5; ++i) CHECK_EQ(rig.submit_here(*lane, rig.ticket(1)), Status::ok);
  CHECK(rig.runner.run_ready());
  CHECK_EQ(rig.stages[0]->batches, (Sizes{3}));
  CHECK(rig.runner.run_ready());
  CHECK_EQ(rig.stages[0]->batches, (Sizes{3, 2}));
}

TEST_CASE("event loop without workers runs everything") {
  Rig rig;
  auto lane = rig.add_lane(costing(0, 60));
  CHECK_EQ(rig.submit_here(*lane, rig.ticket(1, 9)), Status::ok);
  CHECK_EQ(rig.run_all(), 1);
}

TEST_CASE("event loop hands over what turned out to take long") {
  Rig rig(1);
  auto lane = rig.add_lane(costing(0, 10));
  rig.stages[0]->during = [&] { rig.clock->advance(kMilli); };
  rig.clock->wait_asleep(1);
  for (int i = 0; i < 40 && lane->cost.of(1) <= 100 * kMicro; ++i) {
    CHECK_EQ(rig.submit_here(*lane, rig.ticket(1)), Status::ok);
    CHECK_EQ(rig.run_all(), 1);
  }
  CHECK(lane->cost.of(1) > 100 * kMicro);
  const int before = rig.inbox.completions();
  CHECK_EQ(rig.submit_here(*lane, rig.ticket(1)), Status::ok);
  CHECK_EQ(rig.run_all(), 0);
  rig.inbox.wait_for(before + 1);
}

TEST_CASE("event loop takes the small requests and leaves the large one") {
  Rig rig(1);
  auto lane = rig.add_lane(costing(0, 10));
  rig.stages[0]->hold();  // the worker, with the first large one
  CHECK_EQ(rig.submit(*lane, rig.of_flow(1, 50)), Status::ok);
  rig.stages[0]->wait_running(1);
  CHECK_EQ(rig.submit_here(*lane, rig.of_flow(1, 50)), Status::ok);
  auto small = rig.of_flow(2, 1);
  CHECK_EQ(rig.submit_here(*lane, small), Status::ok);
  std::thread loop([&] { CHECK_EQ(rig.run_all(), 1); });
  rig.stages[0]->wait_running(2);
  rig.stages[0]->release();
  loop.join();
  rig.inbox.wait_for(3);
  CHECK_EQ(rig.stages[0]->batches[0], 32u);  // a slice
  CHECK_EQ(rig.stages[0]->batches[1], 1u);
}

TEST_CASE("worker leaves a small request to its event loop although it would be next") {
  Rig rig(1);
  auto lane = rig.add_lane(costing(0, 10));
  rig.clock->wait_asleep(1);
  auto small = rig.of_flow(2, 1), large = rig.of_flow(1, 20);
  CHECK_EQ(rig.submit_here(*lane, small), Status::ok);
  CHECK_EQ(rig.submit(*lane, large), Status::ok);
  rig.inbox.wait_for(1);
  CHECK_EQ(large->completed.load(), 1);
  CHECK_EQ(small->completed.load(), 0);
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(small->completed.load(), 1);
}

TEST_CASE("a long request behind a full batch has a worker although no core is free") {
  Rig rig(1);
  LaneOptions options = costing(0, 10, 1);
  options.max_wait_us = 1000;
  auto lane = rig.add_lane(options);
  rig.clock->wait_asleep(1);
  const unsigned cores = usable_cores.exchange(0);
  CHECK_EQ(rig.submit_here(*lane, rig.ticket(1, 1)), Status::ok);   // full: the loop may run it
  CHECK_EQ(rig.submit_here(*lane, rig.ticket(1, 12)), Status::ok);  // 120 us: wakes the worker
  CHECK(rig.run_all() <= 1);                                        // none if the worker was quicker
  rig.inbox.wait_for(2);
  usable_cores = cores;
}

TEST_CASE("a round is submitted whole and each ticket has its own status") {
  Rig rig;
  LaneOptions options = costing(0, 200);  // more than a loop keeps for itself
  options.queue_rows = 4;
  auto narrow = rig.add_lane(options);
  auto wide = rig.add_lane();
  std::vector<Submission> round;
  const auto add = [&](Lane& lane, std::uint32_t rows) {
    round.push_back({&lane, Ref<Ticket>(rig.ticket(1, rows))});
  };
  add(*narrow, 3);
  add(*narrow, 2);  // one too many
  add(*wide, 2);
  add(*narrow, 1);
  rig.runner.submit(round);
  CHECK_EQ(round[0].status, Status::ok);
  CHECK_EQ(round[1].status, Status::overloaded);
  CHECK(round[1].ticket);
  CHECK(!round[0].ticket);
  CHECK_EQ(rig.engine.outstanding(), 3u);
  CHECK_EQ(narrow->metrics->in_flight(), 2u);
  CHECK_EQ(narrow->queued_rows.load(), 4u);
  CHECK_EQ(rig.run_all(), 2);
  CHECK_EQ(rig.stages[0]->batches, (Sizes{4}));
}

TEST_CASE("another event loop takes only what is more than a loop keeps") {
  Rig rig;
  auto lane = rig.add_lane(costing(0, 10));
  InlineRunner other(rig.engine);
  for (int i = 0; i < 20; ++i) CHECK_EQ(rig.submit_here(*lane, rig.ticket(1)), Status::ok);
  CHECK(!other.run_ready());  // 200 us of work
  for (int i = 0; i < 3; ++i) CHECK_EQ(rig.submit_here(*lane, rig.ticket(1)), Status::ok);
  CHECK(other.run_ready());
  CHECK(!other.run_ready());
  CHECK_EQ(rig.run_all(), 2);
  CHECK_EQ(rig.stages[0]->batches, (Sizes{3, 10, 10}));
}

TEST_CASE("a loop keeps the requests of many lanes as it goes on") {
  Rig rig;
  InlineRunner other(rig.engine);
  std::vector<std::shared_ptr<Lane>> lanes;
  for (int i = 0; i < 40; ++i) lanes.push_back(rig.add_lane(costing(0, 1)));
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    CHECK_EQ(rig.submit_here(*lanes[i], rig.ticket(1)), Status::ok);
    if (i >= 8) CHECK(rig.runner.run_ready());
  }
  CHECK(!other.run_ready());
  CHECK_EQ(rig.run_all(), 8);
}

TEST_CASE("a loop goes on with what is for all while it has requests of its own") {
  Rig rig;
  auto others = rig.add_lane(costing(0, 10, 1)), own = rig.add_lane(costing(0, 10, 1));
  for (int i = 0; i < 3; ++i) rig.send(*others, 1);
  for (int i = 0; i < 3; ++i) CHECK_EQ(rig.submit_here(*own, rig.ticket(1)), Status::ok);
  for (int i = 0; i < 4; ++i) CHECK(rig.runner.run_ready());
  CHECK_EQ(rig.stages[0]->batches.size(), 2u);
  CHECK_EQ(rig.stages[1]->batches.size(), 2u);
  CHECK_EQ(rig.run_all(), 2);
}

TEST_CASE("a loop keeps more while no core is free") {
  Rig rig;
  auto lane = rig.add_lane(costing(0, 10));
  InlineRunner other(rig.engine);
  std::vector<std::unique_ptr<BusyScope>> all_busy;
  while (a_core_is_free()) all_busy.push_back(std::make_unique<BusyScope>());
  for (int i = 0; i < 50; ++i) CHECK_EQ(rig.submit_here(*lane, rig.ticket(1)), Status::ok);
  CHECK(!other.run_ready());  // 500 us of work
  CHECK_EQ(rig.submit_here(*lane, rig.ticket(1)), Status::ok);
  CHECK(other.run_ready());
  CHECK_EQ(rig.run_all(), 5);
}

TEST_CASE("a loop that ends completes what it had kept") {
  Rig rig;
  auto lane = rig.add_lane();
  auto probe = rig.ticket(1);
  {
    InlineRunner other(rig.engine);
    Submission one{lane.get(), Ref<Ticket>(Ref<Probe>(probe))};
    other.submit({&one, 1});
    CHECK_EQ(one.status, Status::ok);
  }
  CHECK_EQ(probe->outcome.status, Status::shutting_down);
  CHECK_EQ(rig.engine.outstanding(), 0u);
}

TEST_CASE("a removed lane is freed although a loop has run it") {
  Rig rig;
  auto lane = rig.add_lane();
  CHECK_EQ(rig.submit_here(*lane, rig.ticket(1)), Status::ok);
  CHECK_EQ(rig.run_all(), 1);
  rig.engine.remove_lane(lane);
  lane.reset();
  CHECK(rig.stages[0]->freed);
}

}  // namespace
}  // namespace fused_mlp::test
