// SPDX-License-Identifier: Apache-2.0
// Workers: slices, several workers for one lane, buffers. On a manual
// clock, with costs that the tests set; a puppet kernel takes no time unless its stage advances the clock.

#include <doctest/doctest.h>

#include "engine/run/busy_threads.hpp"
#include "puppets.hpp"

namespace fused_mlp::test {
namespace {

using Sizes = std::vector<std::size_t>;

TEST_CASE("worker runs a large batch in slices and lets others go first") {
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
  CHECK_EQ(large->metrics->batch_rows().count, 1u);
}

TEST_CASE("a small request of the same lane runs between slices") {
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
TEST_CASE("a small request goes before the rest of a large one of its connection") {
  Rig rig(1);
  auto lane = rig.add_lane(costing(0, 200));
  Ref<Probe> small;
  auto large = rig.of_flow(1, 48);
  rig.stages[0]->during = [&] {
    if (small) {
      CHECK_EQ(large->completed.load(), 0);
      return;
    }
    small = rig.of_flow(1, 1);
    CHECK_EQ(rig.submit(*lane, small), Status::ok);
  };
  CHECK_EQ(rig.submit(*lane, large), Status::ok);
  rig.inbox.wait_for(2);
  const std::lock_guard lock(rig.stages[0]->mutex);
  CHECK_EQ(rig.stages[0]->batches, (Sizes{16, 1, 16, 16}));
}

TEST_CASE("a batch whose callers are gone ends between two slices") {
  Rig rig(1);
  auto lane = rig.add_lane(costing(0, 100));
  auto probe = rig.ticket(1, 64);
  rig.stages[0]->during = [&] { probe->cancel(); };
  CHECK_EQ(rig.submit(*lane, probe), Status::ok);
  rig.inbox.wait_for(1);
  rig.engine.stop();
  CHECK_EQ(probe->outcome.status, Status::cancelled);
  CHECK_EQ(rig.stages[0]->batches, (Sizes{16}));
  CHECK_EQ(lane->metrics->wasted_rows(), 16u);
  CHECK_EQ(rig.engine.outstanding(), 0u);
}

TEST_CASE("rows computed for a caller that is gone count as wasted") {
  Rig rig(1);
  auto lane = rig.add_lane(costing(0, 100));
  auto probe = rig.ticket(1, 4);
  probe->deadline_ns = rig.clock->now() + kMilli;
  rig.stages[0]->during = [&] { rig.clock->advance(2 * kMilli); };
  CHECK_EQ(rig.submit(*lane, probe), Status::ok);
  rig.inbox.wait_for(1);
  rig.engine.stop();
  CHECK_EQ(lane->metrics->wasted_rows(), 4u);
}

TEST_CASE("a batch of several requests has no more rows than a slice") {
  Rig rig(1);
  auto lane = rig.add_lane(costing(0, 10));
  rig.clock->wait_asleep(1);
  std::vector<Submission> round;
  for (int i = 0; i < 4; ++i) round.push_back({lane.get(), Ref<Ticket>(rig.ticket(1, 16))});
  rig.runner.submit(round);
  rig.inbox.wait_for(4);
  CHECK_EQ(rig.stages[0]->batches, (Sizes{32, 32}));
}

TEST_CASE("workers run no more native batches at once than there are cores") {
  Rig rig(2);
  auto one = rig.add_lane(costing(0, 1000)), other = rig.add_lane(costing(0, 1000));
  auto python = rig.add_lane(costing(0, 1000), /*python=*/true);
  const unsigned cores = usable_cores.exchange(1);
  rig.clock->wait_asleep(2);
  for (const auto& stage : rig.stages) stage->hold();
  rig.send(*one, 1);
  rig.stages[0]->wait_running(1);
  rig.send(*other, 1);
  rig.send(*python, 1);  // does not count: it may wait for a device
  rig.stages[2]->wait_running(1);
  rig.stages[2]->release();
  rig.inbox.wait_for(1);
  rig.clock->wait_asleep(1);
  CHECK(!rig.stages[1]->is_running());
  for (const auto& stage : rig.stages) stage->release();
  rig.inbox.wait_for(3);
  usable_cores = cores;
}

TEST_CASE("a worker gives large buffers back when it was idle for a second") {
  Rig rig(1);
  auto lane = rig.add_lane();
  rig.clock->wait_asleep(1);
  rig.send(*lane, 1, 1);
  rig.inbox.wait_for(1);
  rig.clock->wait_asleep(1);
  const std::size_t small = rig.engine.buffer_bytes();
  CHECK((small > 0 && small < 1024));
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

TEST_CASE("a batch of python runs in one call") {
  Rig rig(1);
  auto lane = rig.add_lane(costing(0, 1000), /*python=*/true);
  rig.send(*lane, 1, 64);
  rig.inbox.wait_for(1);
  CHECK_EQ(rig.stages[0]->batches, (Sizes{64}));
}

TEST_CASE("a failing slice fails its batch once") {
  Rig rig(1);
  auto lane = rig.add_lane(costing(0, 100));
  rig.stages[0]->fail_next = true;
  auto probe = rig.send(*lane, 1, 64);
  rig.inbox.wait_for(1);
  CHECK_EQ(probe->outcome.status, Status::kernel_error);
  rig.engine.stop();
  CHECK_EQ(rig.stages[0]->batches, (Sizes{16}));
  CHECK_EQ(lane->metrics->kernel_errors.load(), 1u);
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

TEST_CASE("a second worker waits until a batch is worth its fixed part") {
  SecondWorker second;
  Rig& rig = second.rig;
  for (int i = 0; i < 9; ++i) rig.send(*second.lane, 1);
  rig.stages[0]->wait_running(2);
  rig.stages[0]->release();
  rig.inbox.wait_for(11);
  CHECK_EQ(rig.stages[0]->batches, (Sizes{1, 10}));
}

TEST_CASE("a second worker takes what has waited for long") {
  SecondWorker second;
  Rig& rig = second.rig;
  rig.clock->advance(kMilli);
  rig.stages[0]->wait_running(2);
  rig.stages[0]->release();
  rig.inbox.wait_for(2);
}

TEST_CASE("idle workers share the batch of a kernel that uses one core") {
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
