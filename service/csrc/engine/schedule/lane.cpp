// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/lane.hpp"

#include <algorithm>

namespace fused_mlp {

Lane::Lane(LaneOptions given, std::unique_ptr<Kernel> runs)
    : options(std::move(given)),
      metrics(options.metrics ? options.metrics : std::make_shared<LaneMetrics>()),
      kernel(std::move(runs)),
      needs_worker(kernel->needs_worker()),
      has_steps(kernel->has_steps()),
      max_running(kernel->max_at_once()),
      cost(options.cost),
      batch_rows(options.max_batch_rows) {
  plan_batches();
}

// Whole blocks. A kernel that runs each batch in one call, in Python or on a device, gains from all rows.
void Lane::plan_batches() noexcept {
  if (needs_worker) return;
  const Nanos slice = std::max(kSlice, kSlicePerFixed * cost.fixed(options.max_batch_rows));
  const std::uint64_t blocks =
      std::max<std::uint64_t>(1, (cost.rows_within(slice) + kBlockRows / 2) / kBlockRows);
  const auto rows =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(blocks * kBlockRows, options.max_batch_rows));
  if (rows != batch_rows.load(std::memory_order_relaxed)) batch_rows.store(rows, std::memory_order_relaxed);
}

Nanos Lane::time_of(std::uint64_t rows) const noexcept {
  const std::uint32_t batch = batch_rows.load(std::memory_order_relaxed);
  const std::uint64_t rest = rows % batch;
  return static_cast<Nanos>(rows / batch) * cost.of(batch) + (rest != 0 ? cost.of(rest) : 0);
}

std::uint32_t Lane::retry_after_ms() const noexcept {
  return static_cast<std::uint32_t>(std::clamp<Nanos>(time_of(queued_rows) / 1'000'000, 1, 1000));
}

std::string Lane::refusal_text(Status status) const {
  switch (status) {
    case Status::overloaded:
      return "queue full: " + std::to_string(queued_rows) + " of " + std::to_string(options.queue_rows) +
             " rows are waiting" +
             (options.target_queue_ms != 0 ? ", for up to " + std::to_string(options.target_queue_ms) + " ms"
                                           : "") +
             "; retry in " + std::to_string(retry_after_ms()) + " ms";
    case Status::deadline_expired:
      return "the deadline had expired when the request was read";
    case Status::deadline_too_near:
      return "the deadline cannot be met: " + std::to_string(queued_rows) +
             " rows are waiting; allow more time, or retry in " + std::to_string(retry_after_ms()) + " ms";
    case Status::shutting_down:
      return "the server is shutting down";
    case Status::kernel_error:
      return "out of memory";
    default:
      return status_name(status);
  }
}

}  // namespace fused_mlp
