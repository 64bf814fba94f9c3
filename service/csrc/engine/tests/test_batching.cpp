// SPDX-License-Identifier: Apache-2.0
// How batches form, on the test's thread and a manual clock: every outcome is deterministic.
#include <doctest/doctest.h>

#include "puppets.hpp"

namespace fused_mlp::test {
namespace {

std::uint64_t refused(const Lane& lane, Refusal reason) { return lane.metrics->refused(reason); }
std::uint64_t released(const Lane& lane, Release reason) { return lane.metrics->batches(reason); }
LaneOptions lane_options(std::uint32_t max_batch_rows, std::uint32_t max_wait_us = 0,
                         std::uint32_t queue_rows = 4096) {
  LaneOptions options;
  options.max_batch_rows = max_batch_rows;
  options.max_wait_us = max_wait_us;
  options.queue_rows = queue_rows;
  return options;
}

TEST_CASE("tickets that are queued share a batch and get their own rows") {
  Rig rig;
  auto lane = rig.add_lane();
  auto a = rig.send(*lane, 10, 2);
  auto b = rig.send(*lane, 20);
  auto c = rig.send(*lane, 30, 3);
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(a->y, (std::vector<float>{20, 22}));
  CHECK_EQ(b->y, (std::vector<float>{40}));
  CHECK_EQ(c->y, (std::vector<float>{60, 62, 64}));
  CHECK_EQ(b->outcome.batch_rows, 6u);
  CHECK_EQ(b->strategy, "puppet");
  CHECK_EQ(lane->metrics->rows(), 6u);
  CHECK_EQ(released(*lane, Release::idle), 1u);
  CHECK_EQ(lane->metrics->in_flight(), 0u);
  CHECK_EQ(lane->queued_rows.load(), 0u);
}

TEST_CASE("batch never exceeds its rows and keeps the order") {
  Rig rig;
  auto lane = rig.add_lane(lane_options(4));
  for (int i = 0; i < 3; ++i) rig.send(*lane, 1, 3);
  CHECK_EQ(rig.run_all(), 3);
  CHECK_EQ(rig.stages[0]->batches, (std::vector<std::size_t>{3, 3, 3}));
  CHECK_EQ(released(*lane, Release::full), 2u);
  CHECK_EQ(released(*lane, Release::idle), 1u);
}

TEST_CASE("request larger than a batch runs alone") {
  Rig rig;
  auto lane = rig.add_lane(lane_options(4));
  rig.send(*lane, 1, 2);
  auto large = rig.send(*lane, 5, 9);
  rig.send(*lane, 1, 2);
  CHECK_EQ(rig.run_all(), 3);
  CHECK_EQ(rig.stages[0]->batches, (std::vector<std::size_t>{2, 9, 2}));
  CHECK_EQ(large->y.size(), 9u);
  CHECK_EQ(large->y.back(), 26.0f);
}

TEST_CASE("cancelled ticket does not delay batch mates") {
  Rig rig;
  auto lane = rig.add_lane(lane_options(2));
  auto a = rig.send(*lane, 1);
  auto gone = rig.send(*lane, 2);
  auto b = rig.send(*lane, 3);
  gone->cancel();
  CHECK_EQ(rig.run_all(), 1);  // b takes the place of the cancelled ticket
  CHECK_EQ(gone->outcome.status, Status::cancelled);
  CHECK_EQ(gone->gathered.load(), 0);
  CHECK_EQ(a->y, (std::vector<float>{2}));
  CHECK_EQ(b->y, (std::vector<float>{6}));
  CHECK_EQ(refused(*lane, Refusal::cancelled), 1u);
}

TEST_CASE("batch of cancelled tickets runs no kernel") {
  Rig rig;
  auto lane = rig.add_lane();
  auto gone = rig.send(*lane, 1);
  gone->cancel();
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(gone->completed.load(), 1);
  CHECK(rig.stages[0]->batches.empty());
  gone->cancel();  // after completion: no effect
  CHECK_EQ(gone->completed.load(), 1);
}

TEST_CASE("expired ticket never reaches the kernel") {
  Rig rig;
  auto lane = rig.add_lane();
  auto late = rig.ticket(1);
  late->deadline_ns = rig.clock->now() + 5 * kMicro;
  CHECK_EQ(rig.submit(*lane, late), Status::ok);
  auto mate = rig.send(*lane, 2);
  rig.clock->advance(5 * kMicro);
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(late->outcome.status, Status::deadline_expired);
  CHECK_EQ(late->outcome.queue_ns, 5 * kMicro);
  CHECK(!late->detail.empty());
  CHECK_EQ(late->gathered.load(), 0);
  CHECK_EQ(mate->outcome.status, Status::ok);
  CHECK_EQ(rig.stages[0]->batches, (std::vector<std::size_t>{1}));
  CHECK_EQ(refused(*lane, Refusal::deadline), 1u);
}

// A front cancels what has expired: a caller that gave up early is another thing.
TEST_CASE("expired ticket counts as such although its front has cancelled it") {
  for (const bool by_loop : {false, true}) {
    Rig rig;
    auto lane = rig.add_lane();
    auto late = rig.ticket(1);
    late->deadline_ns = rig.clock->now() + 5 * kMicro;
    CHECK_EQ(by_loop ? rig.submit_here(*lane, late) : rig.submit(*lane, late), Status::ok);
    rig.clock->advance(5 * kMicro);
    late->cancel();
    CHECK_EQ(rig.run_all(), 1);
    CHECK_EQ(late->outcome.status, Status::deadline_expired);
    CHECK_EQ(refused(*lane, Refusal::deadline), 1u);
    CHECK_EQ(refused(*lane, Refusal::cancelled), 0u);
  }
}

TEST_CASE("deadline that has passed is refused at submit") {
  Rig rig;
  auto lane = rig.add_lane();
  auto late = rig.ticket(1);
  late->deadline_ns = rig.clock->now();
  CHECK_EQ(rig.submit(*lane, late), Status::deadline_expired);
  CHECK_EQ(rig.run_all(), 0);
  CHECK_EQ(late->completed.load(), 0);
}

TEST_CASE("full queue refuses at once and recovers") {
  Rig rig;
  auto lane = rig.add_lane(lane_options(64, 0, 4));
  auto first = rig.send(*lane, 1, 3);
  auto refused_one = rig.ticket(2, 2);
  CHECK_EQ(rig.submit(*lane, refused_one), Status::overloaded);
  CHECK_EQ(refused_one->completed.load(), 0);
  CHECK_EQ(refused(*lane, Refusal::queue_full), 1u);
  CHECK(lane->refusal_text(Status::overloaded).find("3 of 4 rows") != std::string::npos);
  CHECK(lane->retry_after_ms() >= 1);
  rig.send(*lane, 3);  // one row still fits
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(rig.submit(*lane, refused_one), Status::ok);
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(refused_one->y, (std::vector<float>{4, 6}));
}

TEST_CASE("empty queue takes a request larger than itself") {
  Rig rig;
  auto lane = rig.add_lane(lane_options(64, 0, 4));
  auto large = rig.send(*lane, 1, 100);
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(large->y.size(), 100u);
}

TEST_CASE("wait is counted from the first arrival") {
  Rig rig;
  auto lane = rig.add_lane(lane_options(64, 100));
  auto first = rig.send(*lane, 1);
  CHECK_EQ(rig.run_all(), 0);
  rig.clock->advance(60 * kMicro);
  auto second = rig.send(*lane, 2);
  CHECK_EQ(rig.run_all(), 0);
  rig.clock->advance(39 * kMicro);
  CHECK_EQ(rig.run_all(), 0);
  rig.clock->advance(1 * kMicro);
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(first->outcome.queue_ns, 100 * kMicro);
  CHECK_EQ(second->outcome.queue_ns, 40 * kMicro);
  CHECK_EQ(second->outcome.batch_rows, 2u);
  CHECK_EQ(released(*lane, Release::wait), 1u);
}

TEST_CASE("full batch does not wait and the rest waits from its own arrival") {
  Rig rig;
  auto lane = rig.add_lane(lane_options(2, 100));
  rig.send(*lane, 1);
  rig.clock->advance(30 * kMicro);
  rig.send(*lane, 2);
  auto rest = rig.send(*lane, 3);
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(released(*lane, Release::full), 1u);
  rig.clock->advance(99 * kMicro);
  CHECK_EQ(rig.run_all(), 0);
  rig.clock->advance(1 * kMicro);
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(rest->outcome.queue_ns, 100 * kMicro);
}

TEST_CASE("ticket that would expire while waiting releases its batch") {
  Rig rig;
  auto lane = rig.add_lane(lane_options(64, 100));
  auto patient = rig.send(*lane, 1);
  auto urgent = rig.ticket(2);
  urgent->deadline_ns = rig.clock->now() + 50 * kMicro;
  CHECK_EQ(rig.submit(*lane, urgent), Status::ok);
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(urgent->outcome.status, Status::ok);
  CHECK_EQ(patient->outcome.status, Status::ok);
}

TEST_CASE("lanes are served round robin") {
  Rig rig;
  auto busy = rig.add_lane(lane_options(1));
  auto quiet = rig.add_lane(lane_options(1));
  std::vector<Ref<Probe>> many;
  for (int i = 0; i < 10; ++i) many.push_back(rig.send(*busy, 1));
  auto one = rig.send(*quiet, 2);
  CHECK(rig.runner.run_ready());
  CHECK(rig.runner.run_ready());
  CHECK_EQ(one->completed.load(), 1);  // the second batch, although ten tickets arrived before it
  rig.send(*quiet, 3);
  rig.send(*quiet, 4);
  CHECK_EQ(rig.run_all(), 11);
  CHECK_EQ(rig.stages[0]->batches.size(), 10u);
  CHECK_EQ(rig.stages[1]->batches.size(), 3u);
}

TEST_CASE("failing batch fails only its own tickets") {
  Rig rig;
  auto lane = rig.add_lane(lane_options(2));
  rig.stages[0]->fail_next = true;
  auto a = rig.send(*lane, 1);
  auto b = rig.send(*lane, 2);
  auto c = rig.send(*lane, 3);
  CHECK_EQ(rig.run_all(), 2);
  CHECK_EQ(a->outcome.status, Status::kernel_error);
  CHECK_EQ(b->outcome.status, Status::kernel_error);
  CHECK(a->y.empty());
  CHECK_EQ(a->detail.find("told to fail"), std::string::npos);  // for the log only
  CHECK_EQ(c->outcome.status, Status::ok);
  CHECK_EQ(rig.errors, (std::vector<std::string>{"told to fail"}));
  CHECK_EQ(lane->metrics->kernel_errors.load(), 1u);
}

TEST_CASE("each sink is flushed once per batch") {
  Rig rig;
  auto lane = rig.add_lane();
  Inbox other;
  for (int i = 0; i < 4; ++i) {
    CHECK_EQ(rig.submit(*lane, rig.ticket(1, 1, &rig.inbox)), Status::ok);
    CHECK_EQ(rig.submit(*lane, rig.ticket(1, 1, &other)), Status::ok);
  }
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(rig.inbox.flushes.load(), 1);
  CHECK_EQ(other.flushes.load(), 1);
  CHECK_EQ(rig.submit(*lane, rig.ticket(1, 1, &other)), Status::ok);
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(rig.inbox.flushes.load(), 1);  // had no ticket in that batch, and might be destroyed already
  CHECK_EQ(other.flushes.load(), 2);
}

TEST_CASE("lanes that need python are left to workers") {
  Rig rig;
  auto python = rig.add_lane({}, /*python=*/true);
  auto native = rig.add_lane();
  rig.send(*python, 1);
  auto served = rig.send(*native, 2);
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(served->completed.load(), 1);
  CHECK(rig.stages[0]->batches.empty());
}

}  // namespace
}  // namespace fused_mlp::test
