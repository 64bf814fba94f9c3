// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/loop_queue.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/run/busy_threads.hpp"
#include "engine/schedule/admission.hpp"

namespace fused_mlp {

namespace {
constexpr std::size_t kMaxBatches = 16;  // few enough for a linear search
}

std::size_t LoopQueue::keep(std::span<Submission> list) {
  const std::lock_guard lock(mutex_);
  if (closed_) return list.size();
  std::uint64_t kept = 0, of_lane = 0, rows_of_lane = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    Submission& each = list[i];
    if (each.status == Status::ok) {
      const std::uint32_t rows = each.ticket->rows();
      if (Batch* const batch = add_rows(*each.lane, rows)) {
        batch->tickets.push_back(std::move(each.ticket));  // add_rows has made room
        ++of_lane;
        rows_of_lane += rows;
      }
    }
    if (of_lane != 0 && (i + 1 == list.size() || list[i + 1].lane != each.lane)) {
      each.lane->metrics->accept(of_lane, rows_of_lane);
      kept += std::exchange(of_lane, 0);
      rows_of_lane = 0;
    }
  }
  accepted.fetch_add(kept, std::memory_order_relaxed);
  batches_left_.store(last_ - first_, std::memory_order_relaxed);
  return list.size() - kept;
}

// The batch that a ticket of so many rows joins, with room for it. Null: it is not for this loop.
LoopQueue::Batch* LoopQueue::add_rows(Lane& lane, std::uint32_t rows) noexcept {
  if (lane.needs_worker || lane.options.max_wait_us != 0) return nullptr;
  Batch* batch = nullptr;
  for (std::size_t i = last_; i-- > first_;) {
    Batch& each = batches_[i];
    if (each.lane.get() != &lane) continue;
    // Only the last one of its lane has room.
    if (each.rows + rows <= lane.options.max_batch_rows && lane.cost.of(each.rows + rows) <= kLongest) {
      batch = &each;
    }
    break;
  }
  const Nanos before = batch ? batch->estimate : 0;
  const Nanos estimate = lane.cost.of((batch ? batch->rows : 0) + rows);
  const Nanos all = estimate_ - before + estimate;
  if (estimate > kLongest || all > kBusyBudget) return nullptr;
  // Looked at last: all threads write to that line, and most rounds are short.
  if (all > kBudget && a_core_is_free()) return nullptr;
  try {
    if (batch == nullptr) {
      if (first_ == last_ || last_ == kMaxBatches) {  // those that were taken make room
        std::rotate(batches_.begin(), batches_.begin() + static_cast<std::ptrdiff_t>(first_), batches_.end());
        last_ -= std::exchange(first_, 0);
      }
      if (last_ == kMaxBatches) return nullptr;
      if (last_ == batches_.size()) batches_.emplace_back();
      batch = &batches_[last_];
      batch->tickets.reserve(std::max<std::size_t>(16, batch->tickets.capacity()));
      batch->lane = reference(lane);
      ++last_;
    } else if (batch->tickets.size() == batch->tickets.capacity()) {
      batch->tickets.reserve(2 * batch->tickets.size());
    }
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  estimate_ += estimate - before;
  batch->estimate = estimate;
  batch->rows += rows;
  return batch;
}

bool LoopQueue::take(TakenBatch& batch, Nanos now) noexcept {
  if (empty()) return false;
  const std::lock_guard lock(mutex_);
  if (first_ == last_) return false;
  Batch& taken = batches_[first_];
  batch.lane = std::move(taken.lane);
  batch.rows = 0;
  batch.taken_at = now;
  batch.estimate = taken.estimate;
  batch.from_queue = false;
  batch.release = taken.rows >= batch.lane->options.max_batch_rows ? Release::full : Release::idle;
  batch.runnable.swap(taken.tickets);  // which leaves an empty one with some capacity behind
  auto kept = batch.runnable.begin();
  bool doubtful = false;
  for (Ref<Ticket>& ticket : batch.runnable) {
    const Status status = Admission::judge(*batch.lane, *ticket, now);
    if (status == Status::ok || !batch.make_room_to_drop()) {
      batch.rows += ticket->rows();
      std::swap(*kept++, ticket);
    } else {
      doubtful |= status == Status::deadline_too_near;
      batch.dropped.push_back(
          {std::move(ticket), status == Status::cancelled ? status : Status::deadline_expired});
    }
  }
  if (doubtful && batch.runnable.begin() == kept) batch.lane->cost.doubt();
  batch.runnable.erase(kept, batch.runnable.end());
  estimate_ -= taken.estimate;
  taken.rows = 0;
  taken.estimate = 0;
  ++first_;
  batches_left_.store(last_ - first_, std::memory_order_relaxed);
  return true;
}

void LoopQueue::finished(TakenBatch& batch, std::size_t tickets) noexcept {
  std::shared_ptr<Lane> released = std::move(batch.lane);
  {
    const std::lock_guard lock(mutex_);
    if (!released->removed.load(std::memory_order_relaxed)) {
      std::shared_ptr<Lane>* place = &lanes_[replaced_];
      for (auto& each : lanes_) {
        if (!each) place = &each;
      }
      if (*place) replaced_ = (replaced_ + 1) % lanes_.size();
      std::swap(*place, released);
    }
  }
  ended.fetch_add(tickets);
  // `released` goes here: a kernel is not destroyed with the mutex held.
}

std::shared_ptr<Lane> LoopQueue::reference(Lane& lane) {
  for (auto& each : lanes_) {
    if (each.get() == &lane) return std::move(each);
  }
  return lane.shared_from_this();
}

void LoopQueue::forget(const Lane& lane) noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& each : lanes_) {
    if (each.get() == &lane) each.reset();  // never the last reference: the caller has one
  }
}

void LoopQueue::close() noexcept {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

void LoopQueue::drop_all(std::vector<TakenBatch>& into) {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (; first_ < last_; ++first_) {
    Batch& batch = batches_[first_];
    TakenBatch& dropped = into.emplace_back();
    dropped.lane = std::move(batch.lane);
    for (Ref<Ticket>& ticket : batch.tickets) {
      dropped.dropped.push_back({std::move(ticket), Status::shutting_down});
    }
    batch.tickets.clear();
  }
  batches_left_.store(0, std::memory_order_relaxed);
}

}  // namespace fused_mlp
