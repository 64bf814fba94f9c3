// Runs batches on one thread, with buffers of its own: gather, run, complete the tickets, flush their sinks.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "engine/scheduler.hpp"
#include "engine/shadow_worker.hpp"

namespace fused_mlp {

class BatchRunner {
 public:
  using ErrorHook = std::function<void(const Lane&, std::string_view)>;

  BatchRunner(Clock& clock, const ErrorHook& on_error, ShadowWorker& shadow)
      : clock_(clock), on_error_(on_error), shadow_(shadow) {}

  // Completes every ticket of the batch, then releases the tickets and the lane. Returns their number.
  std::size_t run(TakenBatch& batch) noexcept;

 private:
  void complete_dropped(TakenBatch& batch) noexcept;
  void run_tickets(TakenBatch& batch) noexcept;
  void compute(TakenBatch& batch, Outcome& outcome) noexcept;
  void complete(Ticket& ticket, const Outcome& outcome) noexcept;
  void complete_traced(Ticket& ticket, const Outcome& outcome, const TakenBatch& batch) noexcept;
  void flush_sinks() noexcept;

  Clock& clock_;
  const ErrorHook& on_error_;
  ShadowWorker& shadow_;
  BatchBuffer x_;
  BatchBuffer y_;
  KernelResult result_;
  std::vector<CompletionSink*> sinks_;  // of the tickets completed so far, without duplicates
};

}  // namespace fused_mlp
