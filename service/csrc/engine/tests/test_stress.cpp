// SPDX-License-Identifier: Apache-2.0
// All features concurrently: submitters, cancellation, deadlines, workers and inline runners, lanes that are
// swapped, and a stop in the middle. Every accepted ticket completes exactly once, with its rows or an error.
#include <doctest/doctest.h>

#include <thread>

#include "engine/route/router.hpp"
#include "puppets.hpp"

namespace fused_mlp::test {
namespace {

constexpr std::size_t kWidth = 5;
constexpr int kSubmitters = 3;
constexpr int kPerSubmitter = 8000;

struct World {
  World() : engine(options()) {}
  static EngineOptions options() {
    EngineOptions result;
    result.workers = 2;
    return result;
  }
  std::shared_ptr<Lane> add_lane() {
    LaneOptions lane_options;
    lane_options.in_features = kWidth;
    lane_options.out_features = 1;
    lane_options.max_batch_rows = 8;
    lane_options.queue_rows = 64;
    lane_options.max_wait_us = lanes_added++ % 3 == 0 ? 20 : 0;
    return engine.add_lane(lane_options, std::make_unique<PuppetKernel>(std::make_shared<Stage>(), kWidth));
  }
  void publish(std::shared_ptr<Lane> fused, std::shared_ptr<Lane> unfused) {
    RouteEntry entry;
    entry.model = "m";
    entry.fused = std::move(fused);
    entry.unfused = std::move(unfused);
    entry.allow_override = true;
    router.publish({entry});
  }

  int lanes_added = 0;
  Engine engine;
  Router router;
};

struct Tally {
  std::vector<Ref<Probe>> accepted;
  std::vector<float> values;
  int refused = 0;
};

void submit_many(World& world, Inbox& inbox, int seed, bool inline_runner, Tally& tally) {
  InlineRunner runner(world.engine);
  for (int i = 0; i < kPerSubmitter; ++i) {
    const auto value = static_cast<float>(seed * kPerSubmitter + i);
    auto probe =
        make_ref<Probe>(1u + static_cast<std::uint32_t>(i % 11 == 0 ? 12 : i % 3), kWidth, value, &inbox);
    if (i % 7 == 0) probe->deadline_ns = world.engine.clock().now() + i % 50 * 1000;
    const std::shared_ptr<const RouteTable> table = world.router.table();  // keeps the lane alive
    const Route route = table->resolve({"m", 0, i % 2 == 0 ? Variant::unspecified : Variant::unfused});
    CHECK(route.ok());
    Submission one{route.lane, Ref<Ticket>(Ref<Probe>(probe))};
    if (inline_runner) {
      runner.submit({&one, 1});
    } else {
      one.status = world.engine.submit(*route.lane, std::move(one.ticket));
    }
    const Status status = one.status;
    if (status == Status::ok) {
      tally.accepted.push_back(probe);
      tally.values.push_back(value);
      if (i % 5 == 0) probe->cancel();
    } else {
      ++tally.refused;
    }
    while (inline_runner && runner.run_ready()) {
    }
  }
}

TEST_CASE("every ticket completes exactly once under swaps and stop") {
  for (const bool stop_early : {false, true}) {
    World world;
    Inbox inbox;
    std::shared_ptr<Lane> fused = world.add_lane();
    std::shared_ptr<Lane> unfused = world.add_lane();
    const std::shared_ptr<Shadow> shadow = world.engine.add_shadow("m/1", fused, unfused);
    world.engine.set_shadow(*shadow, 0.5, 1e-3);
    world.publish(fused, unfused);

    std::vector<Tally> tallies(kSubmitters);
    std::atomic<int> running{kSubmitters};
    std::vector<std::thread> threads;
    for (int t = 0; t < kSubmitters; ++t) {
      threads.emplace_back([&, t] {
        submit_many(world, inbox, t, t != 0, tallies[static_cast<std::size_t>(t)]);
        --running;
      });
    }
    threads.emplace_back([&] {  // swaps lanes while tickets are submitted
      while (running > 0) {
        std::shared_ptr<Lane> next = world.add_lane();
        world.publish(next, unfused);
        world.engine.remove_lane(fused);
        fused = std::move(next);
        std::this_thread::yield();
      }
    });
    if (stop_early) {
      inbox.wait_for(kPerSubmitter / 2);
      world.engine.stop();
    }
    for (std::thread& thread : threads) thread.join();
    world.engine.begin_drain();
    CHECK(world.engine.wait_idle(std::chrono::seconds(60)));
    world.engine.stop();

    int accepted = 0;
    int refused = 0;
    for (const Tally& tally : tallies) {
      accepted += static_cast<int>(tally.accepted.size());
      refused += tally.refused;
      for (std::size_t i = 0; i < tally.accepted.size(); ++i) {
        const Probe& probe = *tally.accepted[i];
        CHECK_EQ(probe.completed.load(), 1);
        CHECK(probe.gathered.load() <= 1);
        if (probe.outcome.status != Status::ok) continue;
        for (std::uint32_t row = 0; row < probe.rows(); ++row) {
          CHECK_EQ(probe.y[row], 2 * (tally.values[i] + static_cast<float>(row)));
        }
      }
    }
    CHECK_EQ(accepted + refused, kSubmitters * kPerSubmitter);
    CHECK_EQ(inbox.completions(), accepted);
    CHECK_EQ(shadow->metrics().disputed.load(), 0u);
  }
}

}  // namespace
}  // namespace fused_mlp::test
