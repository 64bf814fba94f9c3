// The engine: queues rows by lane, forms batches, runs kernels on its workers or on a front's own threads,
// and completes tickets. Knows no gRPC, no Python, no models. Every method may be called from any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/clock.hpp"
#include "engine/lane.hpp"
#include "engine/status.hpp"
#include "engine/ticket.hpp"

namespace fused_mlp {

class EngineCore;

struct EngineOptions {
  unsigned workers = 1;
  std::shared_ptr<Clock> clock;  // null: the monotonic clock of the system
  // A batch failed. Called after its tickets were answered, on the thread that ran it. `text` may hold a
  // traceback and is for the log only.
  std::function<void(const Lane& lane, std::string_view text)> on_kernel_error;
  // A shadow found the variants to differ: its first mismatch since it was armed. On the shadow's thread.
  std::function<void(const std::shared_ptr<Shadow>&, const Difference&)> on_mismatch;
};

// Who sees to a ticket that was just queued.
enum class Wake : std::uint8_t {
  worker,  // wake a sleeping worker, if there is one
  caller,  // the submitting thread will call InlineRunner::run_ready() soon: waking another thread costs more
           // than a small kernel. Lanes the caller cannot serve (Python, or waiting for company) wake a
           // worker nevertheless.
};

class Engine {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();  // stop()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  std::shared_ptr<Lane> add_lane(LaneOptions options, std::unique_ptr<Kernel> kernel);
  // Takes the lane out of the engine's books: what is queued is answered without further waiting, and the
  // kernel is freed with the last reference to the lane. A caller who resolved its route just before may
  // still submit to it, so swapping a lane (publish the new route, then remove the old lane) fails nobody.
  void remove_lane(const std::shared_ptr<Lane>& lane);

  // Makes the two lanes of a model version comparable. Before either has traffic; once for each pair.
  std::shared_ptr<Shadow> add_shadow(std::string name, const std::shared_ptr<Lane>& fused,
                                     const std::shared_ptr<Lane>& unfused, ShadowTime time = ShadowTime::cpu);
  // From now on that share of the pair's batches is run again on the other variant, after the answers, and
  // counts as a mismatch when the relative difference is over the tolerance. The thread that does it is
  // started when it is first needed, and is at work for at most the largest of all shares. Throws
  // std::invalid_argument unless 0 <= share <= 1.
  void set_shadow(Shadow& shadow, double share, double tolerance);

  // Queues a ticket whose shape has been checked. ok: complete() will come. Otherwise the ticket stays with
  // the caller, complete() never comes, the refusal is already counted on the lane, and the status is
  //   overloaded        the queue is full
  //   deadline_expired  the deadline had passed
  //   shutting_down     drain or stop has begun
  Status submit(Lane& lane, Ref<Ticket>&& ticket, Wake wake = Wake::worker);

  // New submits are refused as shutting_down; what is queued no longer waits for company.
  void begin_drain();
  // Until every accepted ticket is complete and its sink flushed. False if the time ran out.
  bool wait_idle(std::chrono::nanoseconds timeout);
  // Completes what is still queued as shutting_down, lets running batches end, joins the workers.
  // Idempotent. Called from inside a batch (a kernel, a ticket's completion), it waits for all but that one.
  void stop();

  Clock& clock() const noexcept;
  unsigned workers() const noexcept;
  std::uint64_t outstanding() const;  // accepted and not yet complete
  // For requests that never found a lane (unknown model, broken message): counted here by the fronts.
  RequestMetrics& unrouted() noexcept;

 private:
  friend class InlineRunner;
  std::shared_ptr<EngineCore> core_;  // shared with the workers, so that ends in any order are safe
};

// A worker that ended its own engine (its kernel held the last reference) is left to finish by itself; this
// waits for all such. For the end of the process, before what kernels need goes away.
void join_abandoned_workers();

// Lets an event loop act as a worker: after it has read and submitted all that had arrived (Wake::caller), it
// runs the batches that are ready, on its own thread. One per thread, with its own batch buffers.
//   for (;;) { epoll_wait; read; submit...; while (runner.run_ready()) {} ; write; }
class InlineRunner {
 public:
  explicit InlineRunner(Engine& engine);
  ~InlineRunner();
  InlineRunner(const InlineRunner&) = delete;
  InlineRunner& operator=(const InlineRunner&) = delete;

  // Runs one ready batch of a lane that needs no Python, and completes its tickets before it returns. Never
  // blocks. False: nothing was ready.
  bool run_ready();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fused_mlp
