// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/lane_queue.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace fused_mlp {

namespace {
constexpr std::size_t kFlowsLookedAt = 64;  // for when a ticket is due
constexpr Nanos kMaxUrgent = 4'000'000;
}  // namespace

LaneQueue::~LaneQueue() {
  while (!empty()) pop(next());
}

std::uint64_t LaneQueue::rows_of(std::uint64_t key) const noexcept {
  const Flow* const flow = flows_.find(key);
  return flow ? flow->rows : 0;
}

std::size_t LaneQueue::urgency_of(Nanos arrival, Nanos due) noexcept {
  const auto spans = static_cast<std::uint64_t>(std::max<Nanos>(0, due - arrival) / kMaxUrgent);
  return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(spans)), kUrgencies - 1);
}

void LaneQueue::push(Ref<Ticket>&& ticket, Nanos due) {
  Flow* flow = flows_.find(ticket->flow);
  const bool is_new = flow == nullptr;
  if (is_new) {
    if (heap_.size() == heap_.capacity()) heap_.reserve(2 * heap_.size() + 8);
    flow = &flows_.add(ticket->flow);
    flow->tag = virtual_rows_;
  }
  Ticket* const added = ticket.leak();
  added->next_ = nullptr;
  weights_ += added->weight - (is_new ? 0 : flow->weight);
  flow->weight = added->weight;
  added->due_ns_ = due;
  const std::size_t urgency = urgency_of(added->arrival_ns, due);
  Nanos& last_due = last_due_[urgency];
  last_due = rows_by_urgency_[urgency] == 0 ? due : std::max(last_due, due);
  rows_by_urgency_[urgency] += added->rows();
  ++tickets_[urgency];
  due_sum_[urgency] += static_cast<double>(due);
  rows_ += added->rows();
  flow->rows += added->rows();
  Flow::Tickets& list = flow->tickets[urgency];
  if (list.tail) {
    list.tail = list.tail->next_ = added;
    return;
  }
  list.head = list.tail = added;
  if (is_new) {
    heap_.emplace_back();  // there is room
    rise(heap_.size() - 1, choose_head(*flow));
  } else if (due < heap_[flow->place].due) {
    move(flow->place, choose_head(*flow));
  }
}

Ref<Ticket> LaneQueue::pop(std::size_t place) noexcept {
  Flow& flow = *heap_[place].flow;
  Flow::Tickets& list = flow.tickets[flow.urgency];
  Ticket* const first = list.head;
  virtual_rows_ += static_cast<double>(first->rows()) / weights_;
  rows_by_urgency_[flow.urgency] -= first->rows();
  const bool was_last = --tickets_[flow.urgency] == 0;
  due_sum_[flow.urgency] = was_last ? 0 : due_sum_[flow.urgency] - static_cast<double>(first->due_ns_);
  rows_ -= first->rows();
  flow.rows -= first->rows();
  flow.tag = heap_[place].tag;
  list.head = std::exchange(first->next_, nullptr);
  if (list.head == nullptr) list.tail = nullptr;
  if (flow.rows != 0) {
    sink(place, choose_head(flow));  // tags of a flow only grow
    return Ref<Ticket>::adopt(first);
  }
  weights_ = heap_.size() == 1 ? 0 : weights_ - flow.weight;  // exactly 0, whatever was rounded
  flows_.remove(flow);
  const Head last = heap_.back();
  heap_.pop_back();
  if (place < heap_.size()) move(place, last);
  return Ref<Ticket>::adopt(first);
}

// ---- The heap ----

LaneQueue::Head LaneQueue::choose_head(Flow& flow) noexcept {
  const Ticket* next = nullptr;
  for (std::size_t urgency = 0; urgency < kUrgencies; ++urgency) {
    const Ticket* const first = flow.tickets[urgency].head;
    if (first == nullptr || (next != nullptr && first->due_ns_ >= next->due_ns_)) continue;
    next = first;
    flow.urgency = urgency;
  }
  return {flow.tag + next->rows() / next->weight, next->arrival_ns, next->due_ns_, &flow, next->rows()};
}

void LaneQueue::rise(std::size_t place, const Head& head) noexcept {
  while (place > 0) {
    const std::size_t parent = (place - 1) / 2;
    if (!(head < heap_[parent])) break;
    put(place, heap_[parent]);
    place = parent;
  }
  put(place, head);
}

void LaneQueue::sink(std::size_t place, const Head& head) noexcept {
  for (std::size_t child; (child = 2 * place + 1) < heap_.size(); place = child) {
    if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
    if (!(heap_[child] < head)) break;
    put(place, heap_[child]);
  }
  put(place, head);
}

void LaneQueue::move(std::size_t place, const Head& head) noexcept {
  if (place > 0 && head < heap_[(place - 1) / 2]) {
    rise(place, head);
  } else {
    sink(place, head);
  }
}

std::size_t LaneQueue::next(std::uint64_t max_rows) const noexcept {
  std::size_t best = kNone;
  search(0, max_rows, best);
  return best;
}

// Below a flow that fits, none goes before it.
void LaneQueue::search(std::size_t place, std::uint64_t max_rows, std::size_t& best) const noexcept {
  if (place >= heap_.size() || (best != kNone && !(heap_[place] < heap_[best]))) return;
  if (heap_[place].rows <= max_rows) {
    best = place;
    return;
  }
  search(2 * place + 1, max_rows, best);
  search(2 * place + 2, max_rows, best);
}

Nanos LaneQueue::nearest_due() const noexcept {
  Nanos nearest = kNever;
  for (std::size_t i = 0; i < std::min(heap_.size(), kFlowsLookedAt); ++i) {
    nearest = std::min(nearest, heap_[i].due);
  }
  return nearest;
}

}  // namespace fused_mlp
