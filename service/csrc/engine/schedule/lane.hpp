// SPDX-License-Identifier: Apache-2.0
// A lane: one kernel (a model version and variant), its bounded queue and its metrics. The queue is guarded
// by the scheduler's mutex; the metrics are atomics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/reaper.hpp"
#include "engine/run/cost.hpp"
#include "engine/run/kernel.hpp"
#include "engine/schedule/lane_queue.hpp"
#include "engine/schedule/ready_lanes.hpp"
#include "engine/schedule/time_account.hpp"
#include "engine/shadow/shadow.hpp"
#include "engine/telemetry/metrics.hpp"
#include "engine/ticket.hpp"

namespace fused_mlp {

struct LaneOptions {
  std::string name;  // for logs: "digits/1/fused"
  std::size_t in_features = 0;
  std::size_t out_features = 0;
  std::uint32_t max_batch_rows = 64;  // a larger request runs as a batch of its own
  std::uint32_t max_wait_us = 0;      // 0: no waiting; batches form while the previous one runs
  std::uint32_t queue_rows = 4096;    // capacity; an empty queue accepts one ticket of any size
  std::uint32_t target_queue_ms = 0;  // how long a ticket without a deadline may wait; 0: any time
  Cost cost;                          // measured; zeros: learned from the first batches
  bool one_core = false;  // a kernel call uses one core: a large batch is shared between idle workers
  std::string model;      // lanes of one model share its weight and its time; "": a model of its own
  std::shared_ptr<LaneMetrics> metrics =
      nullptr;  // of an earlier lane that this one goes on for; null: new ones
};

// A plain record: the fronts count on it, the scheduler queues on it, batch runners run its kernel.
struct Lane : std::enable_shared_from_this<Lane>, Reaped {
  // Created by Engine::add_lane.
  Lane(LaneOptions options, std::unique_ptr<Kernel> kernel);

  // Called by the fronts once per finished request, for every gRPC code.
  void record(int grpc_code, std::int64_t duration_ns) noexcept {
    metrics->counts.mine().requests.record(grpc_code, duration_ns);
    if (grpc_code != 0) return;
    if (LogLinearHistogram* const latencies = metrics->latencies()) [[unlikely]] {
      latencies->observe(duration_ns);
    }
  }
  // Records exemplars for a traced request. Negative times mean that it never joined a batch.
  void add_exemplars(const TraceContext& trace, Nanos duration, Nanos queued, Nanos compute) noexcept {
    LaneExemplars* const exemplars = metrics->exemplars();
    if (exemplars == nullptr) return;
    exemplars->request.offer(duration, trace);
    if (queued < 0) return;
    exemplars->queue.offer(queued, trace);
    exemplars->compute.offer(compute, trace);
  }
  // Estimated time of so many rows in batches, on one thread.
  Nanos time_of(std::uint64_t rows) const noexcept;
  // Estimated time to run all queued rows; 1 ms to 1 s.
  std::uint32_t retry_after_ms() const noexcept;
  // The error text for a ticket that submit() refused: which limit, and when to retry.
  std::string refusal_text(Status status) const;

  // A slice takes at least this long, and so many times the fixed part of a batch: that much is lost at most.
  static constexpr Nanos kSlice = 300'000;
  static constexpr Nanos kSlicePerFixed = 8;
  static constexpr std::uint64_t kBlockRows = 16;  // that a kernel computes together
  void plan_batches() noexcept;

  static constexpr Nanos kUsedApart = 1'000'000;
  void mark_used(Nanos now) noexcept {
    // Seldom, so that threads do not take it from each other with every batch.
    if (now - last_used_ns.load(std::memory_order_relaxed) >= kUsedApart) {
      last_used_ns.store(now, std::memory_order_relaxed);
    }
  }

  const LaneOptions options;
  const std::shared_ptr<LaneMetrics> metrics;
  const std::unique_ptr<Kernel> kernel;
  const bool needs_worker;
  const bool has_steps;             // of its kernel
  const std::uint32_t max_running;  // batches at once
  // The lane owns every shadow that it ever had, since a thread may still read the one before. `shadow` is
  // the one in use; null: no batch is compared.
  std::vector<std::shared_ptr<Shadow>> shadows;
  std::atomic<Shadow*> shadow{nullptr};
  std::atomic<Nanos> last_used_ns{0};         // about the end of the last batch; 0: it has run none
  std::atomic<std::uint64_t> queued_rows{0};  // that any thread may take
  CostEstimate cost;
  // Rows of a batch or slice on a worker: more gain nothing. Follows the estimate.
  std::atomic<std::uint32_t> batch_rows;
  std::atomic<bool> removed{false};
  std::shared_ptr<TimeAccount> account;  // set once, by Scheduler::add

  // Guarded by the scheduler's mutex.
  LaneQueue queue;
  std::shared_ptr<Lane> self;  // while it has queued tickets
  RankedPlace in_order, in_short, in_waiting;
  Nanos release_at = 0;        // when the queued tickets stop waiting for batch mates; 0: they do not wait
  Nanos waits_since = 0;       // the arrival of the first ticket since a batch was taken
  Nanos queued_ns = 0;         // estimated CPU time of the queued tickets
  std::uint32_t running = 0;   // batches that were taken from the queue
  std::uint64_t turn = 0;      // when it was last served, as a number
  bool has_short = false;      // an event loop can run some of it
  bool worker_called = false;  // for the queued tickets
};

}  // namespace fused_mlp
