// SPDX-License-Identifier: Apache-2.0
// Workers, drain, stop, and lanes that are added and removed.
#include <doctest/doctest.h>

#include "engine/run/background.hpp"
#include "engine/run/busy_threads.hpp"
#include "puppets.hpp"

namespace fused_mlp::test {
namespace {

using std::chrono::seconds;

TEST_CASE("batches form while the previous one computes") {
  Rig rig(1);
  auto lane = rig.add_lane();
  rig.stages[0]->hold();
  rig.send(*lane, 1);
  rig.stages[0]->wait_running(1);
  for (int i = 0; i < 3; ++i) rig.send(*lane, 2);
  rig.stages[0]->release();
  rig.inbox.wait_for(4);
  CHECK_EQ(rig.stages[0]->batches, (std::vector<std::size_t>{1, 3}));
}

TEST_CASE("several workers run one lane at once") {
  Rig rig(2);
  auto lane = rig.add_lane();
  rig.stages[0]->hold();
  rig.send(*lane, 1);
  rig.stages[0]->wait_running(1);
  rig.send(*lane, 2);
  rig.stages[0]->wait_running(2);
  rig.stages[0]->release();
  rig.inbox.wait_for(2);
  CHECK_EQ(rig.stages[0]->max_at_once, 2);
}

TEST_CASE("worker wakes when the wait is over") {
  Rig rig(1);
  LaneOptions options;
  options.max_wait_us = 100;
  auto lane = rig.add_lane(options);
  auto a = rig.send(*lane, 1);
  rig.clock->advance(50'000);
  auto b = rig.send(*lane, 2);
  rig.clock->advance(50'000);
  rig.inbox.wait_for(2);
  CHECK_EQ(a->outcome.batch_rows, 2u);
  CHECK_EQ(b->outcome.queue_ns, 50'000);
}

TEST_CASE("worker keeps the time for a caller without a timer") {
  Rig rig(1);
  LaneOptions options;
  options.max_wait_us = 100;
  auto lane = rig.add_lane(options);
  auto probe = rig.ticket(1);
  rig.clock->wait_asleep(1);
  CHECK_EQ(rig.submit_here(*lane, probe), Status::ok);
  CHECK_EQ(rig.run_all(), 0);
  rig.clock->wait_deadline(rig.clock->now() + 100'000);
  rig.clock->advance(100'000);
  rig.inbox.wait_for(1);
  CHECK_EQ(probe->outcome.status, Status::ok);
}

TEST_CASE("worker keeps the time for tickets that a caller left queued") {
  Rig rig(1);
  LaneOptions options;
  options.max_batch_rows = 2;
  options.max_wait_us = 100;
  auto lane = rig.add_lane(options);
  rig.clock->wait_asleep(1);
  CHECK_EQ(rig.submit_here(*lane, rig.ticket(1, 2)), Status::ok);  // full at once
  CHECK_EQ(rig.submit_here(*lane, rig.ticket(1, 1)), Status::ok);
  CHECK_EQ(rig.run_all(), 1);
  rig.clock->wait_deadline(rig.clock->now() + 100'000);
  rig.clock->advance(100'000);
  rig.inbox.wait_for(2);
}

TEST_CASE("event loop that runs its own batches wakes no worker") {
  Rig rig(1);
  auto lane = rig.add_lane();
  auto python = rig.add_lane({}, /*python=*/true);
  rig.clock->wait_asleep(1);
  for (int i = 0; i < 100; ++i) {
    CHECK_EQ(rig.submit_here(*lane, rig.ticket(1)), Status::ok);
    CHECK_EQ(rig.run_all(), 1);
  }
  rig.send(*python, 1);
  rig.inbox.wait_for(101);
  rig.clock->wait_asleep(1);
  CHECK_EQ(rig.clock->sleeps(), 2);
}

TEST_CASE("python lane wakes a worker even with wake caller") {
  Rig rig(1);
  auto lane = rig.add_lane({}, /*python=*/true);
  auto probe = rig.ticket(1);
  CHECK_EQ(rig.submit_here(*lane, probe), Status::ok);
  rig.inbox.wait_for(1);
  CHECK_EQ(probe->outcome.status, Status::ok);
}

TEST_CASE("an event loop frees no lane itself") {
  Rig rig;
  std::shared_ptr<Lane> on_a_loop = rig.add_lane(), elsewhere = rig.add_lane();
  std::thread::id loop_id;
  std::thread loop([&, lane = std::move(on_a_loop)]() mutable {
    take_short_turns();
    loop_id = std::this_thread::get_id();
    lane.reset();
    rig.stages[0]->freed.wait(false);
  });
  loop.join();
  CHECK(rig.stages[0]->freed_by != loop_id);
  elsewhere.reset();
  CHECK((rig.stages[1]->freed && rig.stages[1]->freed_by == std::this_thread::get_id()));
}

TEST_CASE("drain answers everything accepted and refuses the rest") {
  Rig rig(1);
  LaneOptions options;
  options.max_wait_us = 1'000'000;  // drain does not wait for batch mates
  auto lane = rig.add_lane(options);
  std::vector<Ref<Probe>> accepted;
  for (int i = 0; i < 5; ++i) accepted.push_back(rig.send(*lane, 1));
  CHECK(!rig.engine.wait_idle(std::chrono::nanoseconds(1)));
  rig.engine.begin_drain();
  CHECK_EQ(rig.submit(*lane, rig.ticket(1)), Status::shutting_down);
  CHECK(rig.engine.wait_idle(seconds(60)));
  for (const auto& probe : accepted) CHECK_EQ(probe->outcome.status, Status::ok);
  CHECK_EQ(rig.engine.outstanding(), 0u);
}

TEST_CASE("stop ends the running batch and completes the rest as shutting down") {
  Rig rig(1);
  auto lane = rig.add_lane();
  rig.stages[0]->hold();
  auto running = rig.send(*lane, 1);
  rig.stages[0]->wait_running(1);
  auto queued = rig.send(*lane, 2);
  std::thread stopper([&] { rig.engine.stop(); });
  rig.inbox.wait_for(1);  // the queued one completes while the kernel still runs
  CHECK_EQ(queued->outcome.status, Status::shutting_down);
  rig.stages[0]->release();
  stopper.join();
  CHECK_EQ(running->outcome.status, Status::ok);
  CHECK_EQ(rig.submit(*lane, rig.ticket(1)), Status::shutting_down);
  rig.engine.stop();
  CHECK_EQ(rig.run_all(), 0);
}

TEST_CASE("removed lane answers its queue and frees its kernel with the last reference") {
  Rig rig;
  LaneOptions options;
  options.max_wait_us = 1'000'000;
  auto lane = rig.add_lane(options);
  auto queued = rig.send(*lane, 1);
  rig.engine.remove_lane(lane);
  auto straggler = rig.send(*lane, 2);  // resolved its route before the removal: served as well
  lane.reset();
  CHECK(!rig.stages[0]->freed);
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(queued->outcome.status, Status::ok);
  CHECK_EQ(straggler->outcome.status, Status::ok);
  CHECK(rig.stages[0]->freed);
}

TEST_CASE("kernel may drop the last reference to its engine") {
  Inbox inbox;
  auto stage = std::make_shared<Stage>();
  EngineOptions options;
  auto engine = std::make_unique<Engine>(std::move(options));
  LaneOptions lane_options;
  lane_options.in_features = lane_options.out_features = 1;
  auto lane = engine->add_lane(lane_options, std::make_unique<PuppetKernel>(stage, 1));
  stage->during = [&] { engine.reset(); };
  stage->hold();  // until submit() has returned: the engine must not be destroyed during a call
  auto probe = make_ref<Probe>(1u, 1u, 1.0f, &inbox);
  CHECK_EQ(engine->submit(*lane, Ref<Ticket>(Ref<Probe>(probe))), Status::ok);
  stage->release();
  inbox.wait_for(1);
  CHECK_EQ(probe->outcome.status, Status::ok);
  join_abandoned_workers();  // the worker still uses the inbox
  CHECK_EQ(inbox.flushes.load(), 1);
}

TEST_CASE("batch on an event loop may stop its engine") {
  Rig rig;
  auto lane = rig.add_lane();
  rig.stages[0]->during = [&] { rig.engine.stop(); };
  auto probe = rig.send(*lane, 1);
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(probe->outcome.status, Status::ok);
  CHECK_EQ(rig.engine.outstanding(), 0u);
}

TEST_CASE("runner may outlive its engine") {
  auto rig = std::make_unique<Engine>(EngineOptions{});
  InlineRunner runner(*rig);
  rig.reset();
  CHECK(!runner.run_ready());
}

// Unmapping weights takes milliseconds, which requests of other models on that loop must not wait for.
TEST_CASE("a lane that an event loop drops last is freed on another thread") {
  Rig rig;
  const auto drop_on_a_thread = [&](bool loop) {
    auto lane = rig.add_lane();
    rig.engine.remove_lane(lane);
    std::thread thread([&] {
      this_thread_is_loop = loop;
      lane.reset();
    });
    const std::thread::id dropped_by = thread.get_id();
    thread.join();
    rig.stages.back()->freed.wait(false);
    return rig.stages.back()->freed_by == dropped_by;
  };
  CHECK(!drop_on_a_thread(true));
  CHECK(drop_on_a_thread(false));
}

}  // namespace
}  // namespace fused_mlp::test
