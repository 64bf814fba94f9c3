// One thread's way of running a batch: gather, run, scatter, complete, flush. Owns that thread's buffers.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "engine/scheduler.hpp"

namespace fused_mlp {

class BatchRun {
 public:
  using ErrorHook = std::function<void(const Lane&, std::string_view)>;

  BatchRun(Clock& clock, const ErrorHook& on_error, ShadowWorker& shadow)
      : clock_(clock), on_error_(on_error), shadow_(shadow) {}

  // Completes every ticket of the batch and lets go of them and of the lane. Returns how many there were.
  std::size_t run(TakenBatch& batch) noexcept;

 private:
  void refuse_dead(TakenBatch& batch) noexcept;
  void run_live(TakenBatch& batch) noexcept;
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
  std::vector<CompletionSink*> sinks_;  // distinct, of the tickets completed so far
};

}  // namespace fused_mlp
