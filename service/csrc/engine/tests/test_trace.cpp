// SPDX-License-Identifier: Apache-2.0
// A trace of requests: has every phase of traced requests and none of the others; is bounded; may start and
// stop while batches run.
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <thread>

#include "engine/telemetry/trace.hpp"
#include "puppets.hpp"

namespace fused_mlp::test {
namespace {

constexpr std::size_t kFeatures = 5;

Ref<Probe> traced_probe(std::uint32_t rows, std::uint64_t id, Inbox& inbox) {
  auto probe = make_ref<Probe>(rows, kFeatures, 1.0f, &inbox);
  probe->trace_id = id;
  return probe;
}

struct TracedEngine {
  TracedEngine() : engine(with_workers()) {
    LaneOptions options;
    options.name = "m/1/fused";
    options.in_features = kFeatures;
    options.out_features = 1;
    lane = engine.add_lane(options, std::make_unique<PuppetKernel>(std::make_shared<Stage>(), kFeatures));
  }
  static EngineOptions with_workers() {
    EngineOptions options;
    options.workers = 2;
    return options;
  }
  void submit(Ref<Probe> probe) { CHECK_EQ(engine.submit(*lane, Ref<Ticket>(std::move(probe))), Status::ok); }
  Engine engine;
  std::shared_ptr<Lane> lane;
};

TEST_CASE("a traced ticket has every phase and an untraced one none") {
  TracedEngine world;
  Inbox inbox;
  CHECK(start_trace(1000));
  CHECK(!start_trace(1000));  // one at a time
  world.submit(traced_probe(3, 7, inbox));
  world.submit(traced_probe(1, 0, inbox));
  inbox.wait_for(2);
  world.engine.begin_drain();
  CHECK(world.engine.wait_idle(std::chrono::seconds(60)));
  const Trace trace = stop_trace();

  std::map<std::uint64_t, std::set<TracePhase>> phases;
  for (const TraceSpan& span : trace.spans) {
    phases[span.request].insert(span.phase);
    CHECK(span.start <= span.end);
    CHECK_EQ(std::string(span.lane), "m/1/fused");
    CHECK_EQ(trace.threads.at(span.thread).substr(0, 10), "mlp-worker");
  }
  CHECK_EQ(phases.size(), 2u);
  CHECK((phases[0] == std::set{TracePhase::kernel}));
  CHECK((phases[7] == std::set{TracePhase::queue, TracePhase::gather, TracePhase::scatter}));
  CHECK_EQ(trace.dropped, 0u);
  CHECK(stop_trace().spans.empty());
}

TEST_CASE("a full buffer drops and counts") {
  CHECK(start_trace(2));
  for (std::uint64_t i = 1; i <= 5; ++i) record_span(TracePhase::decode, i, 1, 1, 2, "lane");
  const Trace trace = stop_trace();
  CHECK_EQ(trace.spans.size(), 2u);
  CHECK_EQ(trace.dropped, 3u);
}

TEST_CASE("tracing starts and stops while batches run") {
  constexpr int kTickets = 6000;  // and more if no trace has met one of them
  TracedEngine world;
  Inbox inbox;
  std::atomic<bool> submitted{false}, traced{false};
  int tickets = 0;
  std::thread submitter([&] {
    for (; tickets < kTickets || !traced; ++tickets) {
      auto probe = traced_probe(1, tracing() ? next_trace_id() : 0, inbox);
      while (world.engine.submit(*world.lane, Ref<Ticket>(Ref<Probe>(probe))) != Status::ok) {
        std::this_thread::yield();  // the queue is full: let the workers run
      }
    }
    submitted = true;
  });
  while (!submitted) {
    CHECK(start_trace(500));
    std::this_thread::yield();
    const Trace trace = stop_trace();
    if (!trace.spans.empty()) traced = true;
    for (const TraceSpan& span : trace.spans) CHECK(span.start <= span.end);
  }
  submitter.join();
  inbox.wait_for(tickets);
  CHECK(traced.load());
  CHECK(!tracing());
}

}  // namespace
}  // namespace fused_mlp::test
