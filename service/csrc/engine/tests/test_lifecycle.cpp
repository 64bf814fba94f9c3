// SPDX-License-Identifier: Apache-2.0
// Workers, drain, stop, and lanes that are added and removed.
#include "puppets.hpp"
#include "testing/check.hpp"

namespace fused_mlp::test {
namespace {

using std::chrono::seconds;

TEST(batches_form_while_the_previous_one_computes) {
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

TEST(several_workers_run_one_lane_at_once) {
  Rig rig(2);
  auto lane = rig.add_lane();
  rig.stages[0]->hold();
  rig.send(*lane, 1);
  rig.stages[0]->wait_running(1);
  rig.send(*lane, 2);
  rig.stages[0]->wait_running(2);
  rig.stages[0]->release();
  rig.inbox.wait_for(2);
  CHECK_EQ(rig.stages[0]->most_at_once, 2);
}

TEST(worker_wakes_when_the_wait_is_over) {
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

TEST(worker_keeps_the_time_for_a_caller_without_a_timer) {
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

TEST(worker_keeps_the_time_for_tickets_that_a_caller_left_queued) {
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

TEST(event_loop_that_runs_its_own_batches_wakes_no_worker) {
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

TEST(python_lane_wakes_a_worker_even_with_wake_caller) {
  Rig rig(1);
  auto lane = rig.add_lane({}, /*python=*/true);
  auto probe = rig.ticket(1);
  CHECK_EQ(rig.submit_here(*lane, probe), Status::ok);
  rig.inbox.wait_for(1);
  CHECK_EQ(probe->outcome.status, Status::ok);
}

TEST(drain_answers_everything_accepted_and_refuses_the_rest) {
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

TEST(stop_ends_the_running_batch_and_completes_the_rest_as_shutting_down) {
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

TEST(removed_lane_answers_its_queue_and_frees_its_kernel_with_the_last_reference) {
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

TEST(kernel_may_drop_the_last_reference_to_its_engine) {
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

TEST(batch_on_an_event_loop_may_stop_its_engine) {
  Rig rig;
  auto lane = rig.add_lane();
  rig.stages[0]->during = [&] { rig.engine.stop(); };
  auto probe = rig.send(*lane, 1);
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(probe->outcome.status, Status::ok);
  CHECK_EQ(rig.engine.outstanding(), 0u);
}

TEST(runner_may_outlive_its_engine) {
  auto rig = std::make_unique<Engine>(EngineOptions{});
  InlineRunner runner(*rig);
  rig.reset();
  CHECK(!runner.run_ready());
}

}  // namespace
}  // namespace fused_mlp::test
