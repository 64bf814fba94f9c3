// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/admission.hpp"

#include <algorithm>

namespace fused_mlp {

namespace {

// An answer takes this long to reach a caller on the same network, or this part of the time left to it.
constexpr double kOnTheWire = 300'000, kPartOnTheWire = 0.1;
// Long waits vary most, and gain nothing: a queue of a few batches keeps the cores busy.
constexpr double kCaution = 1.25;
// The part of the time left to a ticket that is kept for batch mates which join behind it.
constexpr double kForMates = 0.25;

}  // namespace

// The queue is full, but not by this connection: it has an equal part of queue_rows, on top of what others
// have queued. At most twice queue_rows in all.
bool Admission::is_owed_a_place(const Lane& lane, const Ticket& ticket) noexcept {
  const LaneQueue& queue = lane.queue;
  const std::uint64_t most = lane.options.queue_rows;
  return queue.rows() + ticket.rows() <= 2 * most &&
         queue.rows_of(ticket.flow) + ticket.rows() <= most / (queue.flows() + 1);
}

Nanos Admission::due(const Lane& lane, const Ticket& ticket) noexcept {
  if (ticket.deadline_ns != 0) return ticket.deadline_ns;
  const Nanos target = Nanos{lane.options.target_queue_ms} * 1'000'000;
  return target != 0 ? ticket.arrival_ns + target : LaneQueue::kNever;
}

// The ticket must be done in time, and so must the queued tickets that are less urgent: it goes before them.
// In floating point: deadlines may be centuries away.
Status Admission::admit(const Lane& lane, const Ticket& ticket, Nanos now, const Promised& promised,
                        double share, unsigned cores) noexcept {
  const LaneQueue& queue = lane.queue;
  const bool has_deadline = ticket.deadline_ns != 0;
  if (queue.empty()) {
    // Any size: a ticket of more than queue_rows would always be refused. And an idle lane tries it, so that
    // a wrong estimate does not refuse for ever.
    if (!has_deadline || lane.running == 0) return Status::ok;
  } else if (queue.rows() + ticket.rows() > lane.options.queue_rows && !is_owed_a_place(lane, ticket)) {
    return Status::overloaded;
  }
  const Nanos due_ns = due(lane, ticket);
  if (due_ns == LaneQueue::kNever) return Status::ok;
  const double pace = lane.cost.pace(), running = static_cast<double>(promised.running_ns(now));
  const auto others = static_cast<double>(promised.queued_ns - lane.queued_ns);
  const double own = has_deadline ? static_cast<double>(lane.cost.of(ticket.rows())) : 0;
  const auto full = static_cast<double>(lane.cost.of(lane.batch_rows));
  // Fair between flows: it waits for at most as many rows of each other flow as of its own, by their weights.
  const auto of_flow = static_cast<std::uint64_t>(
      queue.weights() / ticket.weight * static_cast<double>(queue.rows_of(ticket.flow) + ticket.rows()));
  std::uint64_t before = 0;
  const std::size_t urgency = LaneQueue::urgency_of(ticket.arrival_ns, due_ns);
  const auto wait_behind = [&](std::uint64_t rows) {
    const auto ahead = static_cast<double>(lane.time_of(std::min(rows, of_flow)));
    return (running + pace * (ahead + std::min(others, (ahead + own) * (1 / share - 1)))) / cores;
  };
  for (std::size_t each = 0; each < kUrgencies; ++each) {
    const std::uint64_t more_urgent = before;
    before += queue.rows_of_urgency(each);
    if (each < urgency || (each > urgency && queue.rows_of_urgency(each) == 0)) continue;
    const Nanos until = each == urgency ? due_ns : queue.last_due(each);
    if (until == LaneQueue::kNever) continue;
    const auto left_until = [&](double due) {
      const double span = due - static_cast<double>(now);
      return span - std::min(kOnTheWire, kPartOnTheWire * span);
    };
    // What waits longest has the least time left, and is not behind the others of its urgency.
    if (each > urgency &&
        wait_behind(more_urgent + queue.mean_rows(each)) + pace * own > left_until(queue.first_due(each))) {
      return has_deadline ? Status::deadline_too_near : Status::overloaded;
    }
    const double left = left_until(static_cast<double>(until));
    const double wait = wait_behind(before);
    const double batch = has_deadline ? std::max(pace * own, std::min(pace * full, kForMates * left)) : 0;
    if (kCaution * wait + batch > left) return has_deadline ? Status::deadline_too_near : Status::overloaded;
  }
  return Status::ok;
}

// A deadline that has passed counts before a cancellation: fronts cancel what has expired.
Status Admission::judge(const Lane& lane, const Ticket& ticket, Nanos now) noexcept {
  if (ticket.deadline_ns == 0) return ticket.cancelled() ? Status::cancelled : Status::ok;
  if (ticket.deadline_ns <= now) return Status::deadline_expired;
  if (ticket.cancelled()) return Status::cancelled;
  return lane.cost.elapsed(ticket.rows()) <= ticket.deadline_ns - now ? Status::ok
                                                                      : Status::deadline_too_near;
}

}  // namespace fused_mlp
