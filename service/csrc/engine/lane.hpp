// SPDX-License-Identifier: Apache-2.0
// A lane: one kernel (a model version and variant), its bounded queue and its metrics. The queue is guarded
// by the scheduler's mutex; the metrics are atomics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/cost.hpp"
#include "engine/kernel.hpp"
#include "engine/lane_queue.hpp"
#include "engine/metrics.hpp"
#include "engine/ready_lanes.hpp"
#include "engine/shadow.hpp"
#include "engine/ticket.hpp"
#include "engine/time_account.hpp"

namespace fused_mlp {

struct LaneOptions {
  std::string name;  // for logs: "digits/1/fused"
  std::size_t in_features = 0;
  std::size_t out_features = 0;
  std::uint32_t max_batch_rows = 64;  // a larger request runs as a batch of its own
  std::uint32_t max_wait_us = 0;      // 0: no waiting; batches form while the previous one runs
  std::uint32_t queue_rows = 4096;    // capacity; an empty queue accepts one ticket of any size
  Cost cost;                          // measured; zeros: learned from the first batches
  bool one_core = false;  // a kernel call uses one core: a large batch is shared between idle workers
  std::string model;      // lanes of one model share its weight and its time; "": a model of its own
  std::shared_ptr<LaneMetrics> metrics =
      nullptr;  // of an earlier lane that this one goes on for; null: new ones
};

class Lane : public std::enable_shared_from_this<Lane> {
 public:
  // Created by Engine::add_lane.
  Lane(LaneOptions options, std::unique_ptr<Kernel> kernel);

  const LaneOptions& options() const noexcept { return options_; }

  LaneMetrics& metrics() noexcept { return *metrics_; }
  const LaneMetrics& metrics() const noexcept { return *metrics_; }
  // Rows that any thread may take.
  std::uint64_t queued_rows() const noexcept { return queued_rows_.load(std::memory_order_relaxed); }
  // About the end of the last batch: which model to unload first. 0: it has run none.
  Nanos last_used_ns() const noexcept { return last_used_ns_.load(std::memory_order_relaxed); }

  // Called by the fronts once per finished request, for every gRPC code.
  void record(int grpc_code, std::int64_t duration_ns) noexcept {
    metrics_->counts.mine().requests.record(grpc_code, duration_ns);
  }

  // Of one that a tracing system knows. A negative time: it was in no batch.
  void add_exemplars(const TraceContext& trace, Nanos duration, Nanos queue, Nanos compute) noexcept {
    LaneExemplars* const exemplars = metrics_->exemplars();
    if (exemplars == nullptr) return;
    exemplars->request.offer(duration, trace);
    if (queue < 0) return;
    exemplars->queue.offer(queue, trace);
    exemplars->compute.offer(compute, trace);
  }

  // The share of its model, all its lanes together, relative to other models that have work. Greater than 0.
  void set_weight(double weight) noexcept { account_->weight.store(weight, std::memory_order_relaxed); }
  double weight() const noexcept { return account_->weight.load(std::memory_order_relaxed); }
  const CostEstimate& cost() const noexcept { return cost_; }
  // Estimated time of so many rows in batches, on one thread.
  Nanos time_of(std::uint64_t rows) const noexcept;

  // Estimated time to run all queued rows; 1 ms to 1 s.
  std::uint32_t retry_after_ms() const noexcept;
  // The error text for a ticket that submit() refused: which limit, and when to retry.
  std::string refusal_text(Status status) const;

 private:
  friend class Admission;
  friend class LoopQueue;
  friend class ReadyLanes;
  friend class Scheduler;
  friend class BatchRunner;
  friend class Engine;
  friend class ShadowWorker;

  static constexpr Nanos kUsedApart = 1'000'000;
  void mark_used(Nanos now) noexcept {
    // Seldom, so that threads do not take it from each other with every batch.
    if (now - last_used_ns() >= kUsedApart) last_used_ns_.store(now, std::memory_order_relaxed);
  }

  const LaneOptions options_;
  const std::shared_ptr<LaneMetrics> metrics_;
  const std::unique_ptr<Kernel> kernel_;
  const bool needs_worker_;
  const bool has_steps_;              // of its kernel
  const std::uint32_t most_running_;  // batches at once
  // The lane owns every shadow that it ever had, since a thread may still read the one before. shadow_ is the
  // one in use; null: no batch is compared.
  std::vector<std::shared_ptr<Shadow>> shadows_;
  std::atomic<Shadow*> shadow_{nullptr};
  std::atomic<Nanos> last_used_ns_{0};
  std::atomic<std::uint64_t> queued_rows_{0};
  CostEstimate cost_;
  std::atomic<bool> removed_{false};
  std::shared_ptr<TimeAccount> account_;  // set once, by Scheduler::add

  // Guarded by the scheduler's mutex.
  LaneQueue queue_;
  std::shared_ptr<Lane> self_;  // while it has queued tickets
  RankedPlace in_order_, in_short_, in_waiting_;
  Nanos release_at_ = 0;        // when the queued tickets stop waiting for batch mates; 0: they do not wait
  Nanos waits_since_ = 0;       // the arrival of the first ticket since a batch was taken
  std::uint32_t running_ = 0;   // batches that were taken from the queue
  std::uint64_t turn_ = 0;      // when it was last served, as a number
  bool has_short_ = false;      // an event loop can run some of it
  bool worker_called_ = false;  // for the queued tickets
};

}  // namespace fused_mlp
