// SPDX-License-Identifier: Apache-2.0
#include "engine/admission.hpp"

#include <algorithm>

namespace fused_mlp {

namespace {
// A deadline is given up only if the estimate says that it takes this many times too long.
constexpr Nanos kSurely = 2;
}  // namespace

Status Admission::admit(Lane& lane, const Ticket& ticket) const noexcept {
  const LaneQueue& queue = lane.queue_;
  if (queue.empty()) return Status::ok;  // any ticket: one of more than queue_rows would always be refused
  if (queue.rows() + ticket.rows() > lane.options_.queue_rows && !is_owed_a_place(lane, ticket)) {
    return Status::overloaded;
  }
  if (ticket.deadline_ns == 0) return Status::ok;
  // At best all workers run this lane. Only what is surely too late is refused.
  const auto is_late = [&](std::uint64_t rows) {
    // In floating point: deadlines may be centuries away.
    const auto time = static_cast<double>(lane.time_of(rows)) / std::max(1u, workers_);
    return time * lane.cost_.trust() > kSurely * static_cast<double>(ticket.deadline_ns - ticket.arrival_ns);
  };
  if (!is_late(queue.rows())) return Status::ok;
  if (!lane.cost_.known(lane.options_.max_batch_rows)) return Status::ok;
  if (!is_late(queue.rows_before(ticket.flow, ticket.rows()))) return Status::ok;
  lane.cost_.doubt();
  return Status::deadline_too_near;
}

// The queue is full, but not by this connection: it has an equal part of queue_rows, on top of what others
// have queued. At most twice queue_rows in all.
bool Admission::is_owed_a_place(const Lane& lane, const Ticket& ticket) noexcept {
  const LaneQueue& queue = lane.queue_;
  const std::uint64_t most = lane.options_.queue_rows;
  return queue.rows() + ticket.rows() <= 2 * most &&
         queue.rows_of(ticket.flow) + ticket.rows() <= most / (queue.flows() + 1);
}

// A deadline that has passed counts before a cancellation: fronts cancel what has expired. A deadline that
// cannot be made is judged by the estimate for the ticket's rows alone. Each time the estimate decides, it
// loses some of its weight, so that a wrong one does not refuse for ever.
Status Admission::judge(Lane& lane, const Ticket& ticket, Nanos now) noexcept {
  if (ticket.deadline_ns != 0 && ticket.deadline_ns <= now) return Status::deadline_expired;
  if (ticket.cancelled()) return Status::cancelled;
  if (ticket.deadline_ns == 0 || !lane.cost_.known(ticket.rows())) return Status::ok;
  const double time = static_cast<double>(lane.cost_.of(ticket.rows())) * lane.cost_.trust();
  if (time <= kSurely * static_cast<double>(ticket.deadline_ns - now)) return Status::ok;
  lane.cost_.doubt();
  return Status::deadline_expired;
}

}  // namespace fused_mlp
