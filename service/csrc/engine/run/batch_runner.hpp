// SPDX-License-Identifier: Apache-2.0
// Runs batches on one thread, with buffers of its own: gather, run, complete the tickets, flush their sinks.
// A worker runs large batches in slices, and lets others go first in between. A batch for a device can be
// started, in memory of the kernel's, and finished later.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/run/taken_batch.hpp"
#include "engine/shadow/shadow_worker.hpp"

namespace fused_mlp {

class BatchRunner {
 public:
  using ErrorHook = std::function<void(const Lane&, std::string_view)>;
  // Called between two slices of a batch, with the number of rows that are left.
  using SliceHook = std::function<void(const TakenBatch& running, std::uint64_t left)>;

  // With a hook, it is a worker's.
  BatchRunner(Clock& clock, const ErrorHook& on_error, ShadowWorker& shadow, SliceHook between = {})
      : clock_(clock), on_error_(on_error), shadow_(shadow), between_(std::move(between)) {}

  // Completes every ticket of the batch, then releases them, and says what it spent. Returns their number.
  std::size_t run(TakenBatch& batch) noexcept;

  // In two steps, one batch at a time. False: it cannot be started now, and is as it was. What is dropped of
  // it is complete at once.
  bool start(TakenBatch& batch) noexcept;
  // As run(). `since`: when the device was done with the batch before it, if that was under way.
  std::size_t finish(TakenBatch& batch, Nanos since) noexcept;

  // Bytes of its buffers.
  std::size_t bytes() const noexcept { return x_.bytes() + y_.bytes(); }
  void release_buffers() noexcept {
    x_.release();
    y_.release();
  }

 private:
  // From that one on.
  void complete_dropped(TakenBatch& batch, std::size_t first = 0) noexcept;
  void gather(const TakenBatch& batch, float* x) noexcept;
  void compute(TakenBatch& batch, Outcome& outcome) noexcept;
  bool make_parts(const TakenBatch& batch);
  void run_rows(const Lane& lane, std::uint32_t first, std::uint32_t rows);
  void complete_tickets(TakenBatch& batch, Outcome& outcome) noexcept;
  void tell_of_failure(const Lane& lane) noexcept;
  void offer_to_shadow(const TakenBatch& batch) noexcept;
  static void release_tickets(TakenBatch& batch) noexcept;
  void run_slices(TakenBatch& batch, Outcome& outcome);
  bool give_up(TakenBatch& batch, std::uint64_t computed, Nanos took) noexcept;
  std::uint32_t slice_rows(const TakenBatch& batch) const noexcept;
  void complete(Ticket& ticket, const Outcome& outcome) noexcept;
  void complete_traced(Ticket& ticket, const Outcome& outcome, const TakenBatch& batch) noexcept;
  void flush_sinks() noexcept;

  // Rows of a batch: of one ticket, whose rows have words in common, or whole ones in x_.
  struct Part {
    std::uint32_t first;
    std::uint32_t rows;
    std::span<const WordRun> shared;
    fused_mlp_group group;
  };

  Clock& clock_;
  const ErrorHook& on_error_;
  ShadowWorker& shadow_;
  const SliceHook between_;
  BatchBuffer x_;
  BatchBuffer y_;
  std::vector<Part> parts_;  // of the batch that runs; none: all its rows are whole
  std::vector<fused_mlp_group> groups_;
  KernelResult result_;
  PlacedBatch placed_;  // of a batch that was started
  Nanos started_at_ = 0;
  std::uint64_t batches_ = 0;           // that it has run
  std::vector<CompletionSink*> sinks_;  // of the tickets completed so far, without duplicates
};

}  // namespace fused_mlp
