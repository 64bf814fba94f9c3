// A lane: one kernel (a model version and variant), its bounded queue and its metrics. The queue is guarded
// by the engine's mutex; the metrics are atomics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/kernel.hpp"
#include "engine/metrics.hpp"
#include "engine/shadow.hpp"
#include "engine/ticket.hpp"

namespace fused_mlp {

struct LaneOptions {
  std::string name;  // for logs: "digits/1/fused"
  std::size_t in_features = 0;
  std::size_t out_features = 0;
  std::uint32_t max_batch_rows = 64;  // a larger request runs as a batch of its own
  std::uint32_t max_wait_us = 0;      // 0: no waiting; batches form while the previous one runs
  std::uint32_t queue_rows = 4096;    // capacity; an empty queue accepts one ticket of any size
};

// Tickets in order of arrival, as an intrusive list: queueing allocates nothing.
class LaneQueue {
 public:
  LaneQueue() = default;
  LaneQueue(const LaneQueue&) = delete;
  LaneQueue& operator=(const LaneQueue&) = delete;
  ~LaneQueue();

  bool empty() const noexcept { return head_ == nullptr; }
  std::uint64_t rows() const noexcept { return rows_; }
  const Ticket* front() const noexcept { return head_; }
  static const Ticket* after(const Ticket* ticket) noexcept { return ticket->next_; }
  void push(Ref<Ticket> ticket) noexcept;
  Ref<Ticket> pop() noexcept;

 private:
  Ticket* head_ = nullptr;
  Ticket* tail_ = nullptr;
  std::uint64_t rows_ = 0;
};

class Lane : public std::enable_shared_from_this<Lane> {
 public:
  // Created by Engine::add_lane.
  Lane(LaneOptions options, std::unique_ptr<Kernel> kernel);

  const LaneOptions& options() const noexcept { return options_; }

  LaneMetrics& metrics() noexcept { return metrics_; }
  const LaneMetrics& metrics() const noexcept { return metrics_; }

  // Called by the fronts once per finished request, for every gRPC code.
  void record(int grpc_code, std::int64_t duration_ns) noexcept {
    metrics_.requests.record(grpc_code, duration_ns);
  }

  // Estimated time to run all queued rows, from the compute time per row of recent batches; 1 ms to 1 s.
  std::uint32_t retry_after_ms() const noexcept;
  // The error text for a ticket that submit() refused: which limit, and when to retry.
  std::string refusal_text(Status status) const;

 private:
  friend class Scheduler;
  friend class BatchRunner;
  friend class Engine;
  friend class ShadowWorker;

  const LaneOptions options_;
  const std::unique_ptr<Kernel> kernel_;
  const bool needs_python_;
  // Null: no other variant to compare with. Set once, also while the lane has traffic: first the owner, then
  // the pointer, which is what live threads read.
  std::shared_ptr<Shadow> shadow_owner_;
  std::atomic<Shadow*> shadow_{nullptr};
  LaneMetrics metrics_;
  std::atomic<std::int64_t> ns_per_row_{0};  // moving average, for retry_after_ms

  // Guarded by the scheduler's mutex.
  LaneQueue queue_;
  Nanos release_at_ = 0;  // when the queued tickets stop waiting for batch mates
  bool removed_ = false;
};

}  // namespace fused_mlp
