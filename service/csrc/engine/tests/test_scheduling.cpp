// Who runs a batch, and in which order: event loops and workers, slices, lanes, flows, deadlines. On a manual
// clock, with costs that the tests set; a puppet kernel takes no time unless its stage advances the clock.
#include <thread>

#include "engine/cost.hpp"
#include "puppets.hpp"
#include "testing/check.hpp"

namespace fused_mlp::test {
namespace {

constexpr Nanos kMicro = 1000;
constexpr Nanos kMilli = 1'000'000;
using Sizes = std::vector<std::size_t>;

LaneOptions costing(double fixed_us, double row_us, std::uint32_t max_batch_rows = 64) {
  LaneOptions options;
  options.cost = {fixed_us * 1e3, row_us * 1e3};
  options.max_batch_rows = max_batch_rows;
  return options;
}

Ref<Probe> of_flow(Rig& rig, std::uint64_t flow, std::uint32_t rows, Inbox* inbox = nullptr) {
  auto probe = rig.ticket(static_cast<float>(flow), rows, inbox);
  probe->flow = flow;
  return probe;
}

// ---- Event loops ----

TEST(event_loop_leaves_a_long_batch_to_a_worker) {
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

TEST(event_loop_runs_as_many_requests_at_once_as_fit) {
  Rig rig(1);
  auto lane = rig.add_lane(costing(10, 30));
  rig.clock->wait_asleep(1);
  for (int i = 0; i < 5; ++i) CHECK_EQ(rig.submit_here(*lane, rig.ticket(1)), Status::ok);
  CHECK(rig.runner.run_ready());
  CHECK_EQ(rig.stages[0]->batches, (Sizes{3}));
  CHECK(rig.runner.run_ready());
  CHECK_EQ(rig.stages[0]->batches, (Sizes{3, 2}));
}

TEST(event_loop_without_workers_runs_everything) {
  Rig rig;
  auto lane = rig.add_lane(costing(0, 60));
  CHECK_EQ(rig.submit_here(*lane, rig.ticket(1, 9)), Status::ok);
  CHECK_EQ(rig.run_all(), 1);
}

TEST(event_loop_hands_over_what_turned_out_to_take_long) {
  Rig rig(1);
  auto lane = rig.add_lane(costing(0, 10));
  rig.stages[0]->during = [&] { rig.clock->advance(kMilli); };
  rig.clock->wait_asleep(1);
  for (int i = 0; i < 40 && lane->cost().of(1) <= 100 * kMicro; ++i) {
    CHECK_EQ(rig.submit_here(*lane, rig.ticket(1)), Status::ok);
    CHECK_EQ(rig.run_all(), 1);
  }
  CHECK(lane->cost().of(1) > 100 * kMicro);
  const int before = rig.inbox.completions();
  CHECK_EQ(rig.submit_here(*lane, rig.ticket(1)), Status::ok);
  CHECK_EQ(rig.run_all(), 0);
  rig.inbox.wait_for(before + 1);
}

TEST(event_loop_takes_the_small_requests_and_leaves_the_large_one) {
  Rig rig(1);
  auto lane = rig.add_lane(costing(0, 10));
  rig.stages[0]->hold();  // the worker, with the first large one
  CHECK_EQ(rig.submit(*lane, of_flow(rig, 1, 50)), Status::ok);
  rig.stages[0]->wait_running(1);
  CHECK_EQ(rig.submit_here(*lane, of_flow(rig, 1, 50)), Status::ok);
  auto small = of_flow(rig, 2, 1);
  CHECK_EQ(rig.submit_here(*lane, small), Status::ok);
  std::thread loop([&] { CHECK_EQ(rig.run_all(), 1); });
  rig.stages[0]->wait_running(2);
  rig.stages[0]->release();
  loop.join();
  rig.inbox.wait_for(3);
  CHECK_EQ(rig.stages[0]->batches[0], 32u);  // a slice
  CHECK_EQ(rig.stages[0]->batches[1], 1u);
}

TEST(worker_leaves_a_small_request_to_its_event_loop_although_it_would_be_next) {
  Rig rig(1);
  auto lane = rig.add_lane(costing(0, 10));
  rig.clock->wait_asleep(1);
  auto small = of_flow(rig, 2, 1), large = of_flow(rig, 1, 20);
  CHECK_EQ(rig.submit_here(*lane, small), Status::ok);
  CHECK_EQ(rig.submit(*lane, large), Status::ok);
  rig.inbox.wait_for(1);
  CHECK_EQ(large->completed.load(), 1);
  CHECK_EQ(small->completed.load(), 0);
  CHECK_EQ(rig.run_all(), 1);
  CHECK_EQ(small->completed.load(), 1);
}

TEST(a_round_is_submitted_whole_and_each_ticket_has_its_own_status) {
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
  CHECK_EQ(narrow->metrics().in_flight(), 2u);
  CHECK_EQ(narrow->metrics().queued_rows.load(), 4u);
  CHECK_EQ(rig.run_all(), 2);
  CHECK_EQ(rig.stages[0]->batches, (Sizes{4}));
}

TEST(another_event_loop_takes_only_what_is_more_than_a_loop_keeps) {
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

TEST(a_loop_goes_on_with_what_is_for_all_while_it_has_requests_of_its_own) {
  Rig rig;
  auto others = rig.add_lane(costing(0, 10, 1)), own = rig.add_lane(costing(0, 10, 1));
  for (int i = 0; i < 3; ++i) rig.send(*others, 1);
  for (int i = 0; i < 3; ++i) CHECK_EQ(rig.submit_here(*own, rig.ticket(1)), Status::ok);
  for (int i = 0; i < 4; ++i) CHECK(rig.runner.run_ready());
  CHECK_EQ(rig.stages[0]->batches.size(), 2u);
  CHECK_EQ(rig.stages[1]->batches.size(), 2u);
  CHECK_EQ(rig.run_all(), 2);
}

TEST(requests_join_those_of_their_lane_that_wait) {
  Rig rig;
  auto lane = rig.add_lane(costing(0, 10));
  InlineRunner other(rig.engine);
  rig.send(*lane, 1);
  CHECK_EQ(rig.submit_here(*lane, rig.ticket(1)), Status::ok);
  CHECK(other.run_ready());
  CHECK_EQ(rig.stages[0]->batches, (Sizes{2}));
}

TEST(a_loop_that_ends_completes_what_it_had_kept) {
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

TEST(a_removed_lane_is_freed_although_a_loop_has_run_it) {
  Rig rig;
  auto lane = rig.add_lane();
  CHECK_EQ(rig.submit_here(*lane, rig.ticket(1)), Status::ok);
  CHECK_EQ(rig.run_all(), 1);
  rig.engine.remove_lane(lane);
  lane.reset();
  CHECK(rig.stages[0]->freed);
}

// ---- Workers ----

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
    CHECK_EQ(rig.submit(*lane, of_flow(rig, 1, 2000)), Status::ok);
    small = of_flow(rig, 2, 1);
    CHECK_EQ(rig.submit(*lane, small), Status::ok);
  };
  CHECK_EQ(rig.submit(*lane, of_flow(rig, 1, 48)), Status::ok);
  rig.inbox.wait_for(2);
  CHECK_EQ(small->completed.load(), 1);
  const std::lock_guard lock(rig.stages[0]->mutex);
  CHECK_EQ(rig.stages[0]->batches[0], 16u);
  CHECK_EQ(rig.stages[0]->batches[1], 1u);
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

// ---- Order within a lane ----

TEST(a_small_request_does_not_wait_for_the_large_ones_of_another_flow) {
  Rig rig;
  auto lane = rig.add_lane(costing(0, 0, 4));
  for (std::uint64_t flow = 1; flow <= 3; ++flow) {
    for (int i = 0; i < 2; ++i) CHECK_EQ(rig.submit(*lane, of_flow(rig, flow, 9)), Status::ok);
  }
  CHECK(rig.runner.run_ready());
  auto small = of_flow(rig, 4, 1);
  CHECK_EQ(rig.submit(*lane, small), Status::ok);
  CHECK(rig.runner.run_ready());
  CHECK_EQ(small->completed.load(), 1);
  CHECK_EQ(rig.stages[0]->batches, (Sizes{9, 1}));
}

TEST(a_large_request_waits_for_as_many_rows_of_the_other_flow_at_most) {
  Rig rig;
  auto lane = rig.add_lane(costing(0, 0, 1));
  auto large = of_flow(rig, 1, 8);
  CHECK_EQ(rig.submit(*lane, large), Status::ok);
  for (int i = 0; i < 30; ++i) CHECK_EQ(rig.submit(*lane, of_flow(rig, 2, 1)), Status::ok);
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
    of_one.push_back(of_flow(rig, 1, 1));
    CHECK_EQ(rig.submit(*lane, of_one.back()), Status::ok);
  }
  auto first = of_flow(rig, 2, 1), second = of_flow(rig, 2, 1);
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
      probes->push_back(of_flow(rig, flow * 977, 1));
      CHECK_EQ(rig.submit(*lane, probes->back()), Status::ok);
    }
  }
  for (std::size_t i = 0; i < first.size(); ++i) CHECK(rig.runner.run_ready());
  for (const auto& probe : first) CHECK_EQ(probe->completed.load(), 1);
  for (const auto& probe : second) CHECK_EQ(probe->completed.load(), 0);
  CHECK_EQ(rig.run_all(), 2000);
  CHECK_EQ(lane->metrics().queued_rows.load(), 0u);
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
        while (lane->metrics().queued_rows.load() < 2) rig.send(*lane, 1);
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
    for (int i = 0; i < 10; ++i) CHECK_EQ(rig.submit(*lane, of_flow(rig, 1, 10)), Status::ok);
  }
  Status ask(std::uint64_t flow, Nanos left) {
    auto probe = of_flow(rig, flow, 1);
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

TEST(refusals_do_not_change_what_a_batch_is_charged_or_who_runs_it) {
  CostEstimate cost({1000.0, 100.0});
  for (int i = 0; i < 1000; ++i) cost.doubt();
  CHECK_EQ(cost.of(10), 2000);
  CHECK_EQ(cost.rows_within(2000), 10u);
  CHECK(cost.trust() < 0.01);
  cost.correct(10, 2000);  // a batch was run: believed again
  CHECK_EQ(cost.trust(), 1.0);
}

TEST(a_queue_filled_by_one_connection_has_room_for_another) {
  Rig rig;
  LaneOptions options;
  options.queue_rows = 100;
  auto lane = rig.add_lane(options);
  CHECK_EQ(rig.submit(*lane, of_flow(rig, 1, 100)), Status::ok);
  CHECK_EQ(rig.submit(*lane, of_flow(rig, 1, 1)), Status::overloaded);
  CHECK_EQ(rig.submit(*lane, of_flow(rig, 2, 50)), Status::ok);
  CHECK_EQ(rig.submit(*lane, of_flow(rig, 2, 1)), Status::overloaded);  // a third of 100 by now
  for (std::uint64_t flow = 3; flow < 100; ++flow) rig.submit(*lane, of_flow(rig, flow, 1));
  CHECK(lane->metrics().queued_rows.load() <= 200);
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

}  // namespace
}  // namespace fused_mlp::test
