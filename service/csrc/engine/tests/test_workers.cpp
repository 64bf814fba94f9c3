// SPDX-License-Identifier: Apache-2.0
// Workers: slices, several workers for one lane, buffers. On a manual
// clock, with costs that the tests set; a puppet kernel takes no time unless its stage advances the clock.

#include "puppets.hpp"
#include "testing/check.hpp"

namespace fused_mlp::test {
namespace {

using Sizes = std::vector<std::size_t>;

TEST(worker_runs_a_large_batch_in_slices_and_lets_others_go_first) {
  Rig rig(1);
  auto large = rig.add_lane(costing(0, 100));
  auto small = rig.add_lane(costing(0, 50));
  std::vector<std::string> order;
  Ref<Probe> between;
  rig.stages[0]->during = [&] {
    order.push_back("slice");
    if (!between) between = rig.send(*small, 7);
  };
  rig.stages[1]->during = [&] { order.push_back("small"); };
  auto probe = rig.send(*large, 1, 64);
  rig.inbox.wait_for(2);
  CHECK_EQ(order, (std::vector<std::string>{"slice", "small", "slice", "slice", "slice"}));
  CHECK_EQ(rig.stages[0]->batches, (Sizes{16, 16, 16, 16}));
  CHECK_EQ(probe->y.size(), 64u);
  for (std::size_t row = 0; row < 64; ++row) CHECK_EQ(probe->y[row], 2 * (1 + static_cast<float>(row)));
  CHECK_EQ(probe->outcome.batch_rows, 64u);
  CHECK_EQ(between->y, (std::vector<float>{14}));
  CHECK_EQ(large->metrics().batch_rows().count, 1u);
}

TEST(a_small_request_of_the_same_lane_runs_between_slices) {
  Rig rig(1);
  auto lane = rig.add_lane(costing(0, 200));
  Ref<Probe> small;
  rig.stages[0]->during = [&] {
    if (small) return;
    CHECK_EQ(rig.submit(*lane, rig.of_flow(1, 2000)), Status::ok);
    small = rig.of_flow(2, 1);
    CHECK_EQ(rig.submit(*lane, small), Status::ok);
  };
  CHECK_EQ(rig.submit(*lane, rig.of_flow(1, 48)), Status::ok);
  rig.inbox.wait_for(2);
  CHECK_EQ(small->completed.load(), 1);
  const std::lock_guard lock(rig.stages[0]->mutex);
  CHECK_EQ(rig.stages[0]->batches[0], 16u);
  CHECK_EQ(rig.stages[0]->batches[1], 1u);
}

// A gateway sends the requests of many callers on one connection.
TEST(a_small_request_goes_before_the_rest_of_a_large_one_of_its_connection) {
  Rig rig(1);
  auto lane = rig.add_lane(costing(0, 200));
  Ref<Probe> small;
  auto large = rig.of_flow(1, 48);
  rig.stages[0]->during = [&] {
    if (small) return CHECK_EQ(large->completed.load(), 0);
    small = rig.of_flow(1, 1);
    CHECK_EQ(rig.submit(*lane, small), Status::ok);
  };
  CHECK_EQ(rig.submit(*lane, large), Status::ok);
  rig.inbox.wait_for(2);
  const std::lock_guard lock(rig.stages[0]->mutex);
  CHECK_EQ(rig.stages[0]->batches, (Sizes{16, 1, 16, 16}));
}

TEST(a_worker_gives_large_buffers_back_when_it_was_idle_for_a_second) {
  Rig rig(1);
  auto lane = rig.add_lane();
  rig.clock->wait_asleep(1);
  rig.send(*lane, 1, 1);
  rig.inbox.wait_for(1);
  rig.clock->wait_asleep(1);
  const std::size_t small = rig.engine.buffer_bytes();
  CHECK(small > 0 && small < 1024);
  rig.send(*lane, 1, 1'000'000);  // of 3 floats
  rig.inbox.wait_for(2);
  rig.clock->wait_deadline(rig.clock->now() + 1000 * kMilli);
  CHECK_EQ(rig.engine.buffer_bytes(), 16'000'000u);
  rig.clock->advance(999 * kMilli);
  rig.clock->wait_asleep(1);
  CHECK_EQ(rig.engine.buffer_bytes(), 16'000'000u);
  rig.clock->advance(kMilli);
  rig.clock->wait_deadline(0);
  CHECK_EQ(rig.engine.buffer_bytes(), 0u);
  rig.send(*lane, 1, 1);
  rig.inbox.wait_for(3);
  rig.clock->wait_asleep(1);
  CHECK_EQ(rig.engine.buffer_bytes(), small);
}

TEST(a_batch_of_python_runs_in_one_call) {
  Rig rig(1);
  auto lane = rig.add_lane(costing(0, 1000), /*python=*/true);
  rig.send(*lane, 1, 64);
  rig.inbox.wait_for(1);
  CHECK_EQ(rig.stages[0]->batches, (Sizes{64}));
}

TEST(a_failing_slice_fails_its_batch_once) {
  Rig rig(1);
  auto lane = rig.add_lane(costing(0, 100));
  rig.stages[0]->fail_next = true;
  auto probe = rig.send(*lane, 1, 64);
  rig.inbox.wait_for(1);
  CHECK_EQ(probe->outcome.status, Status::kernel_error);
  rig.engine.stop();
  CHECK_EQ(rig.stages[0]->batches, (Sizes{16}));
  CHECK_EQ(lane->metrics().kernel_errors.load(), 1u);
}

// One of two workers runs a request; one more waits, for less than a batch is worth. The other worker has
// looked at it, and will look again after a millisecond.
struct SecondWorker {
  SecondWorker() {
    rig.stages[0]->hold();
    rig.clock->wait_asleep(2);
    rig.send(*lane, 1);
    rig.stages[0]->wait_running(1);
    rig.send(*lane, 1);
    rig.clock->wait_deadline(rig.clock->now() + kMilli);
  }
  Rig rig{2};
  std::shared_ptr<Lane> lane = rig.add_lane(costing(1000, 100));
};

TEST(a_second_worker_waits_until_a_batch_is_worth_its_fixed_part) {
  SecondWorker second;
  Rig& rig = second.rig;
  for (int i = 0; i < 9; ++i) rig.send(*second.lane, 1);
  rig.stages[0]->wait_running(2);
  rig.stages[0]->release();
  rig.inbox.wait_for(11);
  CHECK_EQ(rig.stages[0]->batches, (Sizes{1, 10}));
}

TEST(a_second_worker_takes_what_has_waited_for_long) {
  SecondWorker second;
  Rig& rig = second.rig;
  rig.clock->advance(kMilli);
  rig.stages[0]->wait_running(2);
  rig.stages[0]->release();
  rig.inbox.wait_for(2);
}

TEST(idle_workers_share_the_batch_of_a_kernel_that_uses_one_core) {
  for (const bool one_core : {true, false}) {
    Rig rig(2);
    LaneOptions options = costing(0, 1000);
    options.one_core = one_core;
    auto lane = rig.add_lane(options);
    rig.clock->wait_asleep(2);
    rig.stages[0]->hold();
    std::vector<Submission> round;
    for (int i = 0; i < 8; ++i) round.push_back({lane.get(), Ref<Ticket>(rig.ticket(1))});
    rig.runner.submit(round);
    rig.stages[0]->wait_running(one_core ? 2 : 1);
    rig.stages[0]->release();
    rig.inbox.wait_for(8);
    CHECK_EQ(rig.stages[0]->batches, (one_core ? Sizes{4, 4} : Sizes{8}));
  }
}

}  // namespace
}  // namespace fused_mlp::test
