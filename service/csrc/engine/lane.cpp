#include "engine/lane.hpp"

#include <algorithm>
#include <cassert>

namespace fused_mlp {

LaneQueue::~LaneQueue() {
  while (!empty()) pop();
}

void LaneQueue::push(Ref<Ticket> ticket) noexcept {
  Ticket* added = ticket.leak();
  added->next_ = nullptr;
  (tail_ ? tail_->next_ : head_) = added;
  tail_ = added;
  rows_ += added->rows();
}

Ref<Ticket> LaneQueue::pop() noexcept {
  Ticket* first = head_;
  head_ = first->next_;
  if (!head_) tail_ = nullptr;
  first->next_ = nullptr;
  rows_ -= first->rows();
  return Ref<Ticket>::adopt(first);
}

Lane::Lane(LaneOptions options, std::unique_ptr<Kernel> kernel)
    : options_(std::move(options)), kernel_(std::move(kernel)), needs_python_(kernel_->needs_python()) {}

std::uint32_t Lane::retry_after_ms() const noexcept {
  const std::uint64_t rows = metrics_.queued_rows.load(std::memory_order_relaxed);
  const auto ns_per_row = static_cast<std::uint64_t>(ns_per_row_.load(std::memory_order_relaxed));
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(rows * ns_per_row / 1'000'000, 1, 1000));
}

std::string Lane::refusal_text(Status status) const {
  switch (status) {
    case Status::overloaded:
      return "queue full: " + std::to_string(metrics_.queued_rows.load(std::memory_order_relaxed)) + " of " +
             std::to_string(options_.queue_rows) + " rows are waiting; retry in " +
             std::to_string(retry_after_ms()) + " ms";
    case Status::deadline_expired:
      return "the deadline had expired when the request was read";
    case Status::shutting_down:
      return "the server is shutting down";
    default:
      return status_name(status);
  }
}

}  // namespace fused_mlp
