// SPDX-License-Identifier: Apache-2.0
#include "engine/lane.hpp"

#include <algorithm>

namespace fused_mlp {

Lane::Lane(LaneOptions options, std::unique_ptr<Kernel> kernel)
    : options_(std::move(options)),
      metrics_(options_.metrics ? options_.metrics : std::make_shared<LaneMetrics>()),
      kernel_(std::move(kernel)),
      needs_worker_(kernel_->needs_worker()),
      has_steps_(kernel_->has_steps()),
      most_running_(kernel_->most_at_once()),
      cost_(options_.cost) {}

Nanos Lane::time_of(std::uint64_t rows) const noexcept {
  const std::uint32_t batch = options_.max_batch_rows;
  const std::uint64_t rest = rows % batch;
  return static_cast<Nanos>(rows / batch) * cost_.of(batch) + (rest != 0 ? cost_.of(rest) : 0);
}

std::uint32_t Lane::retry_after_ms() const noexcept {
  return static_cast<std::uint32_t>(std::clamp<Nanos>(time_of(queued_rows()) / 1'000'000, 1, 1000));
}

std::string Lane::refusal_text(Status status) const {
  switch (status) {
    case Status::overloaded:
      return "queue full: " + std::to_string(queued_rows()) + " of " + std::to_string(options_.queue_rows) +
             " rows are waiting; retry in " + std::to_string(retry_after_ms()) + " ms";
    case Status::deadline_expired:
      return "the deadline had expired when the request was read";
    case Status::deadline_too_near:
      return "the deadline cannot be met: " + std::to_string(queued_rows()) +
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
