// SPDX-License-Identifier: Apache-2.0
// The engine: queues tickets by lane, forms batches, runs kernels on its workers or on a front's threads, and
// completes tickets. Knows no gRPC, no Python, no models. Every method may be called from any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/clock.hpp"
#include "engine/schedule/lane.hpp"
#include "engine/status.hpp"
#include "engine/ticket.hpp"

namespace fused_mlp {

class EngineCore;

struct EngineOptions {
  unsigned workers = 1;
  std::shared_ptr<Clock> clock;  // null: SteadyClock
  // Called when a batch failed, after its tickets are complete, on the thread that ran it. `text` may contain
  // a traceback and is for the log only.
  std::function<void(const Lane& lane, std::string_view text)> on_kernel_error;
  // Called for every compared batch with disputed rows, on the shadow's thread.
  std::function<void(const std::shared_ptr<Shadow>&, const Dispute&)> on_dispute;
};

// One ticket for a lane. Status::ok after submit: complete() will be called. Otherwise the caller keeps the
// ticket, complete() is not called, the lane has counted the refusal, and the status is
//   overloaded         the queue is full
//   deadline_expired   the deadline has passed
//   deadline_too_near  the tickets before it surely take longer than the deadline allows
//   shutting_down      drain or stop has begun
//   kernel_error       there is no memory for it
struct Submission {
  Lane* lane = nullptr;
  Ref<Ticket> ticket;
  Status status = Status::ok;
};

class Engine {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();  // stop()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  std::shared_ptr<Lane> add_lane(LaneOptions options, std::unique_ptr<Kernel> kernel);
  // Runs what is queued without waiting for batch mates. The last reference to the lane frees its kernel. A
  // removed lane still accepts tickets, so swapping lanes (publish the new route, then remove the old lane)
  // refuses no request.
  void remove_lane(const std::shared_ptr<Lane>& lane);

  // Pairs two lanes for comparison; they may have traffic already. Between versions, `fused` is the lane that
  // answers and `unfused` the one that shadows it: only batches of the first are compared. A lane is compared
  // by the shadow that was last given a share. `metrics`: of an earlier pair, to go on with; null: new ones.
  std::shared_ptr<Shadow> add_shadow(std::string name, const std::shared_ptr<Lane>& fused,
                                     const std::shared_ptr<Lane>& unfused, ShadowTime time = ShadowTime::cpu,
                                     ShadowKind kind = ShadowKind::variants,
                                     std::shared_ptr<ShadowMetrics> metrics = nullptr);
  // Runs that share of the pair's batches again on the other variant, after the responses. A relative
  // difference above the tolerance counts as a mismatch. The shadow's thread starts on first use; it works
  // for at most the largest of all shares of the time. Throws std::invalid_argument unless 0 <= share <= 1.
  void set_shadow(Shadow& shadow, double share, double tolerance);

  // Queues a ticket whose shape was validated, for a worker.
  Status submit(Lane& lane, Ref<Ticket>&& ticket);

  // Refuses new tickets as shutting_down; queued ones no longer wait for batch mates.
  void begin_drain();
  // Waits until every accepted ticket is complete and its sink flushed. False on timeout.
  bool wait_idle(std::chrono::nanoseconds timeout);
  // Completes queued tickets as shutting_down, waits for running batches, joins the workers. Idempotent. A
  // call from inside a batch (a kernel, a ticket's complete()) waits for all other batches.
  void stop();

  Clock& clock() const noexcept;
  unsigned workers() const noexcept;
  std::uint64_t outstanding() const;  // accepted and not yet complete
  // Bytes of the buffers that workers have for batches. Idle workers free theirs.
  std::size_t buffer_bytes() const noexcept;
  // Requests without a lane (unknown model, malformed message). The fronts record them.
  RequestMetrics& unrouted() noexcept;

 private:
  friend class InlineRunner;
  std::shared_ptr<EngineCore> core_;  // shared with the workers, so that any order of destruction is safe
};

// Joins workers that could not be joined by stop(): a kernel that holds the last reference to its engine
// destroys it on a worker. Call it before process exit, while everything that kernels use still exists.
void join_abandoned_workers();

// Lets an event loop act as a worker: it submits all requests that had arrived at once, then runs on its own
// thread what takes no longer than about 100 us: waking another thread costs more than a small kernel. The
// rest is for workers. One per thread, with its own batch buffers.
//   for (;;) { epoll_wait; read; submit; while (runner.run_ready()) {} ; write; }
class InlineRunner {
 public:
  explicit InlineRunner(Engine& engine);
  ~InlineRunner();
  InlineRunner(const InlineRunner&) = delete;
  InlineRunner& operator=(const InlineRunner&) = delete;

  // Queues tickets of any lanes: what it can run soon for itself alone, the rest for all threads. Call
  // run_ready() soon, until it returns false.
  void submit(std::span<Submission> list);
  // Runs one ready batch of a lane that needs no Python, if it fits, and completes its tickets. Never blocks.
  // False if there was none.
  bool run_ready();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fused_mlp
