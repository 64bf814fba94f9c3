// SPDX-License-Identifier: Apache-2.0
#include "engine/run/batch_runner.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "engine/telemetry/trace.hpp"

namespace fused_mlp {

namespace {

constexpr std::string_view kOutOfMemory = "out of memory";
// Reading a thread's CPU time is a system call: not for batches that are estimated to take less.
constexpr Nanos kWorthCpuTime = 37'500;
constexpr std::string_view kKernelFailed = "the kernel failed; the reason is in the server's log";

std::string_view detail_of(Status status) noexcept {
  switch (status) {
    case Status::cancelled:
      return "cancelled by the caller";
    case Status::deadline_expired:
      return "the deadline expired in the queue";
    case Status::deadline_too_near:
      return "the deadline would expire before the kernel ends";
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
    if (!batch.runnable.empty()) complete_tickets(batch, outcome);
  }
  batch.lane->metrics->end(tickets);
  flush_sinks();
  tell_of_failure(*batch.lane);
  offer_to_shadow(batch);
  release_tickets(batch);
  return tickets;
}

bool BatchRunner::start(TakenBatch& batch) noexcept {
  const Lane& lane = *batch.lane;
  if (!lane.has_steps || batch.runnable.empty()) return false;
  parts_.clear();
  placed_ = lane.kernel->begin(batch.rows);
  if (placed_.place == nullptr) return false;
  result_.failed = false;
  complete_dropped(batch);
  flush_sinks();
  gather(batch, placed_.x);
  started_at_ = clock_.now();
  lane.kernel->start(placed_, result_);
  return true;
}

std::size_t BatchRunner::finish(TakenBatch& batch, Nanos since) noexcept {
  Lane& lane = *batch.lane;
  const std::size_t tickets = batch.tickets();
  Outcome outcome;
  outcome.batch_rows = batch.rows;
  if (!result_.failed) lane.kernel->finish(placed_, batch.rows, result_);
  const Nanos ended_at = clock_.now();
  // From when the device had nothing before it: a batch that waits for another does not take longer.
  const Nanos began_at = std::max(started_at_, since);
  batch.spent = outcome.compute_ns = std::max<Nanos>(0, ended_at - began_at);
  outcome.computed_at = ended_at;
  if (const Nanos expected = lane.cost.of(batch.rows); expected > 0) {
    batch.spent = std::min(batch.spent, 4 * expected);
  }
  if (!result_.failed) lane.cost.correct(batch.rows, outcome.compute_ns);
  lane.mark_used(ended_at);
  lane.metrics->charge(batch.runnable.size(), started_at_ - batch.taken_at, outcome.compute_ns);
  if (tracing()) [[unlikely]] {
    record_span(TracePhase::kernel, 0, batch.rows, began_at, ended_at, lane.options.name);
  }
  outcome.y = placed_.y;
  complete_tickets(batch, outcome);
  lane.metrics->end(tickets);
  flush_sinks();
  tell_of_failure(lane);
  offer_to_shadow(batch);
  lane.kernel->end(placed_);
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
  Shadow* const shadow = lane.shadow.load(std::memory_order_acquire);
  // A batch of which some rows were not gathered began before there was a shadow.
  if (!shadow || batch.runnable.empty() || result_.failed || !parts_.empty() || !shadow->sample_batch())
    return;
  ShadowWorker::Offer offer(shadow_, *shadow);
  if (!offer) return;
  if (placed_.place != nullptr) {  // in memory of the kernel's, which needs it for the next batch
    const std::size_t in = batch.rows * lane.options.in_features;
    const std::size_t out = batch.rows * lane.options.out_features;
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

void BatchRunner::complete_dropped(TakenBatch& batch, std::size_t first) noexcept {
  for (; first < batch.dropped.size(); ++first) {
    const TakenBatch::Dropped& dropped = batch.dropped[first];
    Outcome outcome;
    outcome.status = dropped.status;
    outcome.rows = dropped.ticket->rows();
    outcome.queue_ns = std::max<Nanos>(0, batch.taken_at - dropped.ticket->arrival_ns);
    outcome.detail = detail_of(dropped.status);
    batch.lane->metrics->refuse(refusal_of(dropped.status));
    batch.lane->metrics->queued(*dropped.ticket, outcome.queue_ns);
    complete(*dropped.ticket, outcome);
  }
}

void BatchRunner::gather(const TakenBatch& batch, float* x) noexcept {
  const LaneOptions& lane = batch.lane->options;
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
  const LaneOptions& lane = batch.lane->options;
  outcome.batch_rows = batch.rows;
  try {
    y_.reserve(batch.rows * lane.out_features);
    if (!make_parts(batch)) gather(batch, x_.reserve(batch.rows * lane.in_features));
    run_slices(batch, outcome);
  } catch (const std::exception& error) {  // out of memory
    result_.fail(error.what());
  }
  outcome.y = y_.data().get();
}

// True if some rows are computed where their tickets have them. A shadow needs whole rows.
bool BatchRunner::make_parts(const TakenBatch& batch) {
  const Lane& lane = *batch.lane;
  parts_.clear();
  const auto shares = [](const Ref<Ticket>& ticket) { return !ticket->shared().empty(); };
  if (!lane.kernel->runs_groups() || lane.shadow.load(std::memory_order_acquire) != nullptr ||
      std::none_of(batch.runnable.begin(), batch.runnable.end(), shares)) {
    return false;
  }
  const std::size_t width = lane.options.in_features;
  std::uint32_t row = 0;
  for (const Ref<Ticket>& ticket : batch.runnable) {
    const std::uint32_t rows = ticket->rows();
    if (shares(ticket)) {
      parts_.push_back({row, rows, ticket->shared(), ticket->group()});
    } else {
      ticket->gather(x_.reserve(batch.rows * width) + row * width);
      const bool goes_on = !parts_.empty() && parts_.back().shared.empty();
      goes_on ? void(parts_.back().rows += rows) : void(parts_.push_back({row, rows, {}, {}}));
    }
    row += rows;
  }
  return true;
}

void BatchRunner::run_rows(const Lane& lane, std::uint32_t first, std::uint32_t rows) {
  if (parts_.empty()) return lane.kernel->run(x_, first, rows, y_, result_);
  const std::uint32_t end = first + rows;
  const auto same = [](std::span<const WordRun> a, std::span<const WordRun> b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const WordRun& one, const WordRun& other) {
      return one.first == other.first && one.last == other.last;
    });
  };
  for (std::size_t i = 0; i < parts_.size() && !result_.failed; ++i) {
    const Part* part = &parts_[i];
    const std::uint32_t begin = std::max(first, part->first), stop = std::min(end, part->first + part->rows);
    if (begin >= stop) continue;
    if (part->shared.empty()) {
      lane.kernel->run(x_, begin, stop - begin, y_, result_);
      continue;
    }
    // With those after it that have the same words in common.
    const std::span<const WordRun> shared = part->shared;
    std::size_t own = lane.options.in_features;
    for (const WordRun& run : shared) own -= run.last - run.first;
    groups_.clear();
    for (;; part = &parts_[++i]) {
      const std::uint32_t skipped = std::max(first, part->first) - part->first;
      const std::uint32_t left = std::min(end, part->first + part->rows) - part->first - skipped;
      groups_.push_back({part->group.shared, part->group.own + skipped * own, left});
      const bool more =
          i + 1 < parts_.size() && parts_[i + 1].first < end && same(parts_[i + 1].shared, shared);
      if (!more) break;
    }
    float* const y = y_.data().get() + begin * lane.options.out_features;
    lane.kernel->run_groups(shared, groups_, y, result_);
  }
}

void BatchRunner::complete_tickets(TakenBatch& batch, Outcome& outcome) noexcept {
  const Lane& lane = *batch.lane;
  LaneMetrics& metrics = *batch.lane->metrics;
  LaneCounts& counts = metrics.counts.mine();
  if (result_.failed) {
    outcome.status = Status::kernel_error;
    outcome.detail = result_.error.find("std::bad_alloc") != std::string::npos ? kOutOfMemory : kKernelFailed;
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
  std::uint64_t wasted = 0;
  for (const Ref<Ticket>& ticket : batch.runnable) {
    outcome.y = y;
    outcome.rows = ticket->rows();
    outcome.queue_ns = std::max<Nanos>(0, batch.taken_at - ticket->arrival_ns);
    counts.queue_duration.observe(outcome.queue_ns);
    metrics.queued(*ticket, outcome.queue_ns);
    if (ticket->gone(outcome.computed_at)) wasted += ticket->rows();
    if (ticket->trace_id == 0) [[likely]] {
      complete(*ticket, outcome);
    } else {
      complete_traced(*ticket, outcome, batch);
    }
    if (y) y += ticket->rows() * lane.options.out_features;
  }
  if (wasted != 0)
    metrics.waste(wasted, static_cast<std::uint64_t>(outcome.compute_ns) * wasted / batch.rows);
}

void BatchRunner::run_slices(TakenBatch& batch, Outcome& outcome) {
  Lane& lane = *batch.lane;
  const std::uint32_t slice = slice_rows(batch);
  Nanos gathered_at = batch.taken_at, ended_at = batch.taken_at;
  const bool by_cpu = between_ && !lane.needs_worker && batch.estimate >= kWorthCpuTime;
  Nanos whole = 0;
  for (std::uint32_t first = 0; first < batch.rows && !result_.failed; first += slice) {
    const std::uint32_t rows = std::min(slice, batch.rows - first);
    if (first != 0) {
      between_(batch, batch.rows - first);
      if (give_up(batch, first, outcome.compute_ns)) break;
    }
    const Nanos cpu_start = by_cpu ? clock_.thread_cpu() : 0;
    const Nanos start = clock_.now();
    if (first == 0) gathered_at = start;
    run_rows(lane, first, rows);
    ended_at = clock_.now();
    const Nanos took = std::max<Nanos>(0, ended_at - start);
    outcome.compute_ns += took;
    Nanos spent = by_cpu ? clock_.thread_cpu() - cpu_start : took;
    if (const Nanos expected = lane.cost.of(rows); expected > 0) spent = std::min(spent, 4 * expected);
    whole += spent;
    if (!result_.failed) lane.cost.correct(rows, by_cpu ? spent : took);
    if (tracing()) [[unlikely]] {
      record_span(TracePhase::kernel, 0, rows, start, start + took, lane.options.name);
    }
  }
  batch.spent = whole;
  if (batch.runnable.empty()) return;
  if (slice < batch.rows && !result_.failed) lane.cost.correct(batch.rows, whole);
  outcome.computed_at = ended_at;
  lane.mark_used(ended_at);
  lane.metrics->charge(batch.runnable.size(), gathered_at - batch.taken_at, outcome.compute_ns);
}

// Between two slices: when all its callers are gone, the batch is dropped, and what was computed was wasted.
bool BatchRunner::give_up(TakenBatch& batch, std::uint64_t computed, Nanos took) noexcept {
  const Nanos now = clock_.now();
  for (const Ref<Ticket>& ticket : batch.runnable) {
    if (!ticket->gone(now)) return false;
  }
  if (!batch.make_room_to_drop(batch.runnable.size())) return false;
  const std::size_t complete = batch.dropped.size();
  for (Ref<Ticket>& ticket : batch.runnable) {
    const Status status = ticket->late(now) ? Status::deadline_expired : Status::cancelled;
    batch.dropped.push_back({std::move(ticket), status});
  }
  batch.runnable.clear();
  complete_dropped(batch, complete);
  batch.lane->metrics->waste(computed, static_cast<std::uint64_t>(took));
  return true;
}

// Equal slices, of whole kernel blocks (sixteen rows, or what the kernel makes of them).
std::uint32_t BatchRunner::slice_rows(const TakenBatch& batch) const noexcept {
  const Lane& lane = *batch.lane;
  const std::uint64_t most = lane.batch_rows.load(std::memory_order_relaxed);
  if (!between_ || lane.needs_worker || batch.rows <= most) return batch.rows;
  const std::uint64_t slices = (batch.rows + most - 1) / most;
  const std::uint64_t even = (batch.rows + slices - 1) / slices;
  return static_cast<std::uint32_t>((even + Lane::kBlockRows - 1) / Lane::kBlockRows * Lane::kBlockRows);
}

void BatchRunner::complete_traced(Ticket& ticket, const Outcome& outcome, const TakenBatch& batch) noexcept {
  const std::string& lane = batch.lane->options.name;
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
