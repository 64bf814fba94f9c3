// SPDX-License-Identifier: Apache-2.0
#include "engine/batch_runner.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "engine/trace.hpp"

namespace fused_mlp {

namespace {

constexpr std::uint64_t kBlockRows = 16;
constexpr std::string_view kKernelFailed = "the kernel failed; the reason is in the server's log";

std::string_view detail_of(Status status) noexcept {
  switch (status) {
    case Status::cancelled:
      return "cancelled by the caller";
    case Status::deadline_expired:
      return "the deadline expired in the queue, or would have before the kernel ended";
    default:
      return "the server is shutting down";
  }
}

}  // namespace

std::size_t BatchRunner::run(TakenBatch& batch) noexcept {
  const std::size_t tickets = batch.tickets();
  result_.failed = false;
  batch.spent = 0;
  // First, so that a cancelled or expired ticket does not wait for the kernel call of its batch mates.
  complete_dropped(batch);
  if (!batch.runnable.empty()) {
    Outcome outcome;
    compute(batch, outcome);
    complete_tickets(batch, outcome);
  }
  batch.lane->metrics_->end(tickets);
  flush_sinks();
  tell_of_failure(*batch.lane);
  offer_to_shadow(batch);
  release_tickets(batch);
  return tickets;
}

bool BatchRunner::start(TakenBatch& batch) noexcept {
  const Lane& lane = *batch.lane;
  if (!lane.has_steps_ || batch.runnable.empty()) return false;
  placed_ = lane.kernel_->begin(batch.rows);
  if (placed_.place == nullptr) return false;
  result_.failed = false;
  complete_dropped(batch);
  flush_sinks();
  gather(batch, placed_.x);
  started_at_ = clock_.now();
  lane.kernel_->start(placed_, result_);
  return true;
}

std::size_t BatchRunner::finish(TakenBatch& batch, Nanos since) noexcept {
  Lane& lane = *batch.lane;
  const std::size_t tickets = batch.tickets();
  Outcome outcome;
  outcome.batch_rows = batch.rows;
  if (!result_.failed) lane.kernel_->finish(placed_, batch.rows, result_);
  const Nanos ended_at = clock_.now();
  // From when the device had nothing before it: a batch that waits for another does not take longer.
  const Nanos began_at = std::max(started_at_, since);
  batch.spent = outcome.compute_ns = std::max<Nanos>(0, ended_at - began_at);
  outcome.computed_at = ended_at;
  if (const Nanos expected = lane.cost_.of(batch.rows); expected > 0) {
    batch.spent = std::min(batch.spent, 4 * expected);
  }
  if (!result_.failed) lane.cost_.correct(batch.rows, outcome.compute_ns);
  lane.mark_used(ended_at);
  lane.metrics_->charge(batch.runnable.size(), started_at_ - batch.taken_at, outcome.compute_ns);
  if (tracing()) [[unlikely]] {
    record_span(TracePhase::kernel, 0, batch.rows, began_at, ended_at, lane.options_.name);
  }
  outcome.y = placed_.y;
  complete_tickets(batch, outcome);
  lane.metrics_->end(tickets);
  flush_sinks();
  tell_of_failure(lane);
  offer_to_shadow(batch);
  lane.kernel_->end(placed_);
  placed_ = {};
  release_tickets(batch);
  return tickets;
}

void BatchRunner::tell_of_failure(const Lane& lane) noexcept {
  if (!result_.failed || !on_error_) return;
  try {
    on_error_(lane, result_.error);
  } catch (const std::exception&) {  // its tickets have been told
  }
}

void BatchRunner::offer_to_shadow(const TakenBatch& batch) noexcept {
  const Lane& lane = *batch.lane;
  Shadow* const shadow = lane.shadow_.load(std::memory_order_acquire);
  if (!shadow || batch.runnable.empty() || result_.failed || !shadow->sample_batch()) return;
  ShadowWorker::Offer offer(shadow_, *shadow);
  if (!offer) return;
  if (placed_.place != nullptr) {  // in memory of the kernel's, which needs it for the next batch
    const std::size_t in = batch.rows * lane.options_.in_features;
    const std::size_t out = batch.rows * lane.options_.out_features;
    try {
      std::copy_n(placed_.x, in, offer.x().reserve(in));
      std::copy_n(placed_.y, out, offer.y().reserve(out));
    } catch (const std::bad_alloc&) {
      return;
    }
  } else {
    std::swap(x_, offer.x());
    std::swap(y_, offer.y());
  }
  offer.make(batch.lane, batch.rows);
}

// Only after flush_sinks(): a ticket may keep its sink alive.
void BatchRunner::release_tickets(TakenBatch& batch) noexcept {
  batch.runnable.clear();
  batch.dropped.clear();
}

void BatchRunner::complete_dropped(TakenBatch& batch) noexcept {
  for (const TakenBatch::Dropped& dropped : batch.dropped) {
    Outcome outcome;
    outcome.status = dropped.status;
    outcome.rows = dropped.ticket->rows();
    outcome.queue_ns = std::max<Nanos>(0, batch.taken_at - dropped.ticket->arrival_ns);
    outcome.detail = detail_of(dropped.status);
    batch.lane->metrics_->refuse(refusal_of(dropped.status));
    complete(*dropped.ticket, outcome);
  }
}

void BatchRunner::gather(const TakenBatch& batch, float* x) noexcept {
  const LaneOptions& lane = batch.lane->options_;
  for (const Ref<Ticket>& ticket : batch.runnable) {
    const Nanos begin = ticket->trace_id == 0 ? 0 : clock_.now();
    ticket->gather(x);
    if (begin != 0) {
      record_span(TracePhase::gather, ticket->trace_id, ticket->rows(), begin, clock_.now(), lane.name);
    }
    x += ticket->rows() * lane.in_features;
  }
}

void BatchRunner::compute(TakenBatch& batch, Outcome& outcome) noexcept {
  const LaneOptions& lane = batch.lane->options_;
  outcome.batch_rows = batch.rows;
  try {
    float* const x = x_.reserve(batch.rows * lane.in_features);
    y_.reserve(batch.rows * lane.out_features);
    gather(batch, x);
    run_slices(batch, outcome);
  } catch (const std::exception& error) {  // out of memory
    result_.failed = true;
    result_.error = error.what();
  }
  outcome.y = y_.data().get();
}

void BatchRunner::complete_tickets(TakenBatch& batch, Outcome& outcome) noexcept {
  const Lane& lane = *batch.lane;
  LaneMetrics& metrics = *batch.lane->metrics_;
  LaneCounts& counts = metrics.counts.mine();
  if (result_.failed) {
    outcome.status = Status::kernel_error;
    outcome.detail = kKernelFailed;
    outcome.y = nullptr;
    metrics.kernel_errors.fetch_add(1, std::memory_order_relaxed);
  } else {
    outcome.strategy = result_.strategy;
  }
  outcome.batch =
      reinterpret_cast<std::uintptr_t>(this) ^ ++batches_ * 0x9e3779b97f4a7c15;  // unlike any other's
  counts.batches[static_cast<std::size_t>(batch.release)].fetch_add(1, std::memory_order_relaxed);
  counts.batch_rows.observe(batch.rows);
  counts.compute_duration.observe(outcome.compute_ns);

  const float* y = outcome.y;
  for (const Ref<Ticket>& ticket : batch.runnable) {
    outcome.y = y;
    outcome.rows = ticket->rows();
    outcome.queue_ns = std::max<Nanos>(0, batch.taken_at - ticket->arrival_ns);
    counts.queue_duration.observe(outcome.queue_ns);
    if (ticket->trace_id == 0) [[likely]] {
      complete(*ticket, outcome);
    } else {
      complete_traced(*ticket, outcome, batch);
    }
    if (y) y += ticket->rows() * lane.options_.out_features;
  }
}

void BatchRunner::run_slices(TakenBatch& batch, Outcome& outcome) {
  Lane& lane = *batch.lane;
  const std::uint32_t slice = slice_rows(batch);
  // Reading a thread's CPU time is a system call: worth it where other threads may have had the core
  // meanwhile.
  Nanos gathered_at = batch.taken_at, ended_at = batch.taken_at;
  const bool by_cpu = between_ && !lane.needs_worker_ && batch.estimate >= kSlice / 8;
  Nanos whole = 0;
  for (std::uint32_t first = 0; first < batch.rows && !result_.failed; first += slice) {
    const std::uint32_t rows = std::min(slice, batch.rows - first);
    if (first != 0) between_(batch, batch.rows - first);
    const Nanos cpu_start = by_cpu ? clock_.thread_cpu() : 0;
    const Nanos start = clock_.now();
    if (first == 0) gathered_at = start;
    lane.kernel_->run(x_, first, rows, y_, result_);
    ended_at = clock_.now();
    const Nanos took = std::max<Nanos>(0, ended_at - start);
    outcome.compute_ns += took;
    Nanos spent = by_cpu ? clock_.thread_cpu() - cpu_start : took;
    if (const Nanos expected = lane.cost_.of(rows); expected > 0) spent = std::min(spent, 4 * expected);
    whole += spent;
    if (!result_.failed) lane.cost_.correct(rows, by_cpu ? spent : took);
    if (tracing()) [[unlikely]] {
      record_span(TracePhase::kernel, 0, rows, start, start + took, lane.options_.name);
    }
  }
  batch.spent = whole;
  // Deadlines are judged by whole batches.
  if (slice < batch.rows && !result_.failed) lane.cost_.correct(batch.rows, whole);
  outcome.computed_at = ended_at;
  lane.mark_used(ended_at);
  lane.metrics_->charge(batch.runnable.size(), gathered_at - batch.taken_at, outcome.compute_ns);
}

// Equal slices, of whole kernel blocks (sixteen rows, or what the kernel makes of them).
std::uint32_t BatchRunner::slice_rows(const TakenBatch& batch) const noexcept {
  const Lane& lane = *batch.lane;
  if (!between_ || lane.needs_worker_) return batch.rows;
  const CostEstimate& cost = lane.cost_;
  const std::uint64_t most =
      std::max<std::uint64_t>(1, cost.rows_within(std::max(kSlice, kSlicePerFixed * cost.fixed(batch.rows))));
  if (batch.rows <= most) return batch.rows;
  const std::uint64_t slices = (batch.rows + most - 1) / most;
  const std::uint64_t even = (batch.rows + slices - 1) / slices;
  return static_cast<std::uint32_t>((even + kBlockRows - 1) / kBlockRows * kBlockRows);
}

void BatchRunner::complete_traced(Ticket& ticket, const Outcome& outcome, const TakenBatch& batch) noexcept {
  const std::string& lane = batch.lane->options_.name;
  const std::uint64_t id = ticket.trace_id;
  record_span(TracePhase::queue, id, ticket.rows(), ticket.arrival_ns, batch.taken_at, lane);
  const Nanos begin = clock_.now();
  complete(ticket, outcome);
  record_span(TracePhase::scatter, id, outcome.rows, begin, clock_.now(), lane);
}

void BatchRunner::complete(Ticket& ticket, const Outcome& outcome) noexcept {
  CompletionSink* sink = ticket.sink_;
  // One sink per event loop: few enough for a linear search.
  bool listed = sink == nullptr || std::find(sinks_.begin(), sinks_.end(), sink) != sinks_.end();
  if (!listed) {
    try {
      sinks_.push_back(sink);
      listed = true;
    } catch (const std::bad_alloc&) {  // flushed at once, and maybe again
    }
  }
  ticket.complete(outcome);
  if (!listed) sink->flush();
}

void BatchRunner::flush_sinks() noexcept {
  for (CompletionSink* sink : sinks_) sink->flush();
  sinks_.clear();
}

}  // namespace fused_mlp
