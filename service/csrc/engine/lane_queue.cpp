#include "engine/lane_queue.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace fused_mlp {

LaneQueue::~LaneQueue() {
  while (!empty()) pop(next());
}

const LaneQueue::Flow* LaneQueue::find(std::uint64_t key) const noexcept {
  const auto found =
      std::find_if(flows_.begin(), flows_.end(), [key](const Flow& flow) { return flow.key == key; });
  if (found != flows_.end()) return &*found;
  return flows_.size() < kMostFlows ? nullptr : &flows_[key % kMostFlows];
}

LaneQueue::Flow& LaneQueue::find_or_add(std::uint64_t key) {
  if (const Flow* known = find(key)) return const_cast<Flow&>(*known);
  try {
    return flows_.emplace_back(Flow{key, nullptr, nullptr, 0});
  } catch (const std::bad_alloc&) {
    if (flows_.empty()) throw;
    return flows_.back();
  }
}

void LaneQueue::push(Ref<Ticket>&& ticket, bool for_loop) {
  Flow& flow = find_or_add(ticket->flow);
  Ticket* const added = ticket.leak();
  added->next_ = nullptr;
  added->for_loop_ = for_loop;
  if (for_loop) loop_rows_ += added->rows();
  added->tag_ = (flow.tail ? std::max(virtual_rows_, flow.tail->tag_) : virtual_rows_) + added->rows();
  (flow.tail ? flow.tail->next_ : flow.head) = added;
  flow.tail = added;
  flow.rows += added->rows();
  rows_ += added->rows();
}

void LaneQueue::hand_to_workers() noexcept {
  loop_rows_ = 0;
  for (const Flow& flow : flows_) {
    for (Ticket* ticket = flow.head; ticket != nullptr; ticket = ticket->next_) ticket->for_loop_ = false;
  }
}

const Ticket* LaneQueue::next(std::uint64_t most_rows, Nanos loops_until) const noexcept {
  const Ticket* best = nullptr;
  for (const Flow& flow : flows_) {
    if (flow.head->rows() > most_rows) continue;
    if (flow.head->for_loop_ && flow.head->arrival_ns > loops_until) continue;
    if (best == nullptr || flow.head->tag_ < best->tag_ ||
        (flow.head->tag_ == best->tag_ && flow.head->arrival_ns < best->arrival_ns)) {
      best = flow.head;
    }
  }
  return best;
}

Ref<Ticket> LaneQueue::pop(const Ticket* ticket) noexcept {
  const auto found =
      std::find_if(flows_.begin(), flows_.end(), [ticket](const Flow& flow) { return flow.head == ticket; });
  Flow& flow = *found;
  Ticket* const first = flow.head;
  virtual_rows_ += static_cast<double>(first->rows()) / static_cast<double>(flows_.size());
  rows_ -= first->rows();
  if (first->for_loop_) loop_rows_ -= first->rows();
  flow.rows -= first->rows();
  flow.head = std::exchange(first->next_, nullptr);
  if (flow.head == nullptr) {
    flow = flows_.back();
    flows_.pop_back();
  }
  return Ref<Ticket>::adopt(first);
}

std::uint64_t LaneQueue::rows_before(std::uint64_t key, std::uint32_t rows) const noexcept {
  const Flow* const own = find(key);
  const std::uint64_t ahead = own ? own->rows : 0;
  std::uint64_t total = ahead;
  for (const Flow& flow : flows_) {
    if (&flow != own) total += std::min(flow.rows, ahead + rows);
  }
  return total;
}

Nanos LaneQueue::oldest_arrival() const noexcept {
  Nanos oldest = flows_.front().head->arrival_ns;
  for (const Flow& flow : flows_) oldest = std::min(oldest, flow.head->arrival_ns);
  return oldest;
}

Nanos LaneQueue::nearest_deadline() const noexcept {
  Nanos nearest = 0;
  for (const Flow& flow : flows_) {
    const Nanos deadline = flow.head->deadline_ns;
    if (deadline != 0 && (nearest == 0 || deadline < nearest)) nearest = deadline;
  }
  return nearest;
}

}  // namespace fused_mlp
