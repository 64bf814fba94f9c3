// SPDX-License-Identifier: Apache-2.0
#include "engine/lane_queue.hpp"

#include <algorithm>
#include <utility>

namespace fused_mlp {

namespace {
constexpr std::size_t kFlowsLookedAt = 64;  // for a deadline
}

LaneQueue::~LaneQueue() {
  while (!empty()) pop(next());
}

std::uint64_t LaneQueue::rows_of(std::uint64_t key) const noexcept {
  const Flow* const flow = flows_.find(key);
  return flow ? flow->rows : 0;
}

void LaneQueue::push(Ref<Ticket>&& ticket) {
  Flow* flow = flows_.find(ticket->flow);
  if (flow == nullptr) {
    if (heap_.size() == heap_.capacity()) heap_.reserve(2 * heap_.size() + 8);
    flow = &flows_.add(ticket->flow);
  }
  Ticket* const added = ticket.leak();
  added->next_ = nullptr;
  added->tag_ = (flow->tail ? std::max(virtual_rows_, flow->tail->tag_) : virtual_rows_) + added->rows();
  flow->rows += added->rows();
  rows_ += added->rows();
  if (flow->tail) {
    flow->tail = flow->tail->next_ = added;
    return;
  }
  flow->head = flow->tail = added;
  heap_.emplace_back();  // there is room
  rise(heap_.size() - 1, head_of(*flow));
}

Ref<Ticket> LaneQueue::pop(std::size_t place) noexcept {
  Flow& flow = *heap_[place].flow;
  Ticket* const first = flow.head;
  virtual_rows_ += static_cast<double>(first->rows()) / static_cast<double>(heap_.size());
  rows_ -= first->rows();
  flow.rows -= first->rows();
  flow.head = std::exchange(first->next_, nullptr);
  if (flow.head != nullptr) {
    sink(place, head_of(flow));  // tags of a flow only grow
    return Ref<Ticket>::adopt(first);
  }
  flows_.remove(flow);
  const Head last = heap_.back();
  heap_.pop_back();
  if (place < heap_.size()) {
    if (place > 0 && last < heap_[(place - 1) / 2]) {
      rise(place, last);
    } else {
      sink(place, last);
    }
  }
  return Ref<Ticket>::adopt(first);
}

// ---- The heap ----

void LaneQueue::rise(std::size_t place, const Head& head) noexcept {
  while (place > 0) {
    const std::size_t parent = (place - 1) / 2;
    if (!(head < heap_[parent])) break;
    heap_[place] = heap_[parent];
    place = parent;
  }
  heap_[place] = head;
}

void LaneQueue::sink(std::size_t place, const Head& head) noexcept {
  for (std::size_t child; (child = 2 * place + 1) < heap_.size(); place = child) {
    if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
    if (!(heap_[child] < head)) break;
    heap_[place] = heap_[child];
  }
  heap_[place] = head;
}

std::size_t LaneQueue::next(std::uint64_t most_rows) const noexcept {
  std::size_t best = kNone;
  search(0, most_rows, best);
  return best;
}

// Below a flow that fits, none goes before it.
void LaneQueue::search(std::size_t place, std::uint64_t most_rows, std::size_t& best) const noexcept {
  if (place >= heap_.size() || (best != kNone && !(heap_[place] < heap_[best]))) return;
  if (heap_[place].rows <= most_rows) {
    best = place;
    return;
  }
  search(2 * place + 1, most_rows, best);
  search(2 * place + 2, most_rows, best);
}

std::uint64_t LaneQueue::rows_before(std::uint64_t key, std::uint32_t rows) const noexcept {
  const std::uint64_t ahead = rows_of(key);
  std::uint64_t total = 0;
  for (const Head& each : heap_) total += std::min(each.flow->rows, ahead + rows);
  return total;  // of its own flow: `ahead`
}

Nanos LaneQueue::nearest_deadline() const noexcept {
  Nanos nearest = kNoDeadline;
  for (std::size_t i = 0; i < std::min(heap_.size(), kFlowsLookedAt); ++i) {
    const Nanos deadline = heap_[i].flow->head->deadline_ns;
    if (deadline != 0) nearest = std::min(nearest, deadline);
  }
  return nearest;
}

}  // namespace fused_mlp
