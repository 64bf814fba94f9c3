// SPDX-License-Identifier: Apache-2.0
// Scheduler, the choice: which batch a worker or an event loop takes, and when.
#include <algorithm>
#include <utility>

#include "engine/run/busy_threads.hpp"
#include "engine/schedule/scheduler.hpp"

namespace fused_mlp {

namespace {

// The longest batch that a worker runs between two slices of another, and how many lanes it looks at for one.
constexpr Nanos kBetween = 300'000;
constexpr std::size_t kBetweenLanes = 32;

// When the queued tickets stop waiting for batch mates: max_wait_us after the first arrival. 0 (at once) if
// the batch is full or a ticket would expire while waiting.
Nanos release_time(const LaneQueue& queue, const LaneOptions& options) noexcept {
  if (queue.empty() || queue.rows() >= options.max_batch_rows) return 0;
  Nanos first_arrival = queue.at(queue.next()).arrival_ns, first_deadline = LaneQueue::kNever;
  queue.for_each([&](const Ticket& ticket) {
    first_arrival = std::min(first_arrival, ticket.arrival_ns);
    if (ticket.deadline_ns != 0) first_deadline = std::min(first_deadline, ticket.deadline_ns);
  });
  const Nanos limit = first_arrival + Nanos{options.max_wait_us} * 1000;
  return first_deadline <= limit ? 0 : limit;
}

}  // namespace

bool Scheduler::fits_loop(const Lane& lane) const noexcept {
  if (lane.needs_worker) return false;
  return workers_ == 0 || lane.queue.next(lane.cost.rows_within(kLoopBudget)) != LaneQueue::kNone;
}

// Whether its kernel cannot begin with another batch now.
bool Scheduler::is_full(const Lane& lane) const noexcept { return lane.running >= lane.max_running; }

// When a worker takes a batch of this lane, which is not full. Beside another batch of the same lane only if
// the rows are worth the fixed part of a batch, or have waited for as long: otherwise more workers would just
// mean smaller batches.
Nanos Scheduler::worker_takes_at(const Lane& lane) const noexcept {
  if (lane.running == 0 || draining_ || lane.removed) return 0;
  const std::uint64_t rows = lane.queue.rows();
  if (rows >= lane.options.max_batch_rows || rows >= lane.cost.rows_worth_fixed()) return 0;
  return lane.waits_since + lane.cost.fixed(rows);
}

// How many rows a worker takes: all, or a part if others are idle and the kernel uses one core. Each part has
// rows for twice the fixed part.
std::uint64_t Scheduler::share_rows(const Lane& lane) const noexcept {
  if (!lane.options.one_core || sleeping_workers_ == 0) return LaneQueue::kAnySize;
  const std::uint64_t parts = sleeping_workers_ + 1;
  return std::max((lane.queue.rows() + parts - 1) / parts, 2 * lane.cost.rows_worth_fixed());
}

// Limits of a batch: `rows` in all, unless a single ticket has more, and no ticket of more than `largest`.
struct Scheduler::Limits {
  std::uint64_t rows = LaneQueue::kAnySize, largest = LaneQueue::kAnySize;
};

void Scheduler::take(Lane& lane, Nanos now, const Limits& limits, TakenBatch& batch) noexcept {
  LaneQueue& queue = lane.queue;
  const std::uint64_t limit = std::min<std::uint64_t>(lane.options.max_batch_rows, limits.rows);
  batch.rows = 0;
  batch.taken_at = now;
  bool full = false, doubtful = false;
  Nanos left = LaneQueue::kNever;  // until the earliest deadline in the batch
  while (!full) {
    const std::size_t first = queue.next(limits.largest);
    if (first == LaneQueue::kNone || !batch.make_room()) break;  // the others stay in the queue
    const Ticket& ticket = queue.at(first);
    const Status status = Admission::judge(lane, ticket, now);
    if (status != Status::ok) {
      doubtful |= status == Status::deadline_too_near;
      batch.dropped.push_back(
          {queue.pop(first), status == Status::cancelled ? status : Status::deadline_expired});
      continue;
    }
    const std::uint32_t rows = batch.rows + ticket.rows();
    const Nanos nearest = ticket.deadline_ns != 0 ? std::min(left, ticket.deadline_ns - now) : left;
    if (!batch.runnable.empty() &&
        (rows > limit || (nearest != LaneQueue::kNever && lane.cost.elapsed(rows) > nearest))) {
      full = true;
    } else {
      left = nearest;
      batch.rows = rows;
      batch.runnable.push_back(queue.pop(first));
      full = batch.rows >= limit;
    }
  }
  batch.release = full ? Release::full : lane.options.max_wait_us != 0 ? Release::wait : Release::idle;
  batch.estimate = batch.runnable.empty() ? 0 : lane.cost.of(batch.rows);
  batch.from_queue = true;
  ++lane.running;
  if (doubtful && batch.runnable.empty()) lane.cost.doubt();
  batch.ends_at = now + (batch.runnable.empty() ? 0 : lane.cost.elapsed(batch.rows));
  promised_.running_end_ns += batch.ends_at;
  ++promised_.running;
  recount(lane);
  if (queue.empty()) {
    batch.lane = std::move(lane.self);
    lanes_with_workers_ -= std::exchange(lane.worker_called, false);
  } else {
    batch.lane = lane.self;
    lane.waits_since = queue.at(queue.next()).arrival_ns;
    lane.has_short = fits_loop(lane);
    if (lane.options.max_wait_us != 0 && !lane.removed && !draining_) {
      lane.release_at = release_time(queue, lane.options);
    }
  }
  ready_.serve(lane, batch.estimate);
}

// The lane of which a worker should take a batch now, if there is one. If a lane is due later and sooner than
// at `next_look`, says when.
Lane* Scheduler::due_for_worker(Nanos now, Nanos& next_look) {
  next_look = ready_.release(now);
  return ready_.first([&](const Lane& each) {
    if (is_full(each)) return false;  // the end of a batch has a worker look again
    if (!each.needs_worker && on_cores_ >= std::max(1u, usable_cores.load(std::memory_order_relaxed)))
      return false;
    const Nanos at = worker_takes_at(each);
    if (at > now && (next_look == 0 || at < next_look)) next_look = at;
    return at <= now;
  });
}

// True if another worker should wake: for the remaining lanes, due or waiting.
bool Scheduler::take_due(Lane& lane, Nanos now, TakenBatch& batch) {
  take(lane, now, {std::min<std::uint64_t>(share_rows(lane), lane.batch_rows)}, batch);
  batch.on_core = !lane.needs_worker;
  on_cores_ += batch.on_core;
  return sleeping_workers_ > 0 && lanes_with_workers_ > 0;
}

Scheduler::Wait Scheduler::wait_take(TakenBatch& batch, Nanos idle_at) {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    const Nanos now = clock_.now();
    Nanos next_look = 0;
    if (Lane* const lane = due_for_worker(now, next_look)) {
      const bool wake = take_due(*lane, now, batch);
      lock.unlock();
      if (wake) work_.notify_one();
      return Wait::taken;
    }
    if (idle_at != 0 && idle_at <= now) return Wait::idle;
    if (idle_at != 0 && (next_look == 0 || idle_at < next_look)) next_look = idle_at;
    ++sleeping_workers_;
    clock_.wait_until(work_, lock, next_look);
    --sleeping_workers_;
  }
  return Wait::stopped;
}

bool Scheduler::take_beside(TakenBatch& batch) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || ready_.empty()) return false;
    const Nanos now = clock_.now();
    Nanos next_look = 0;
    Lane* const lane = due_for_worker(now, next_look);
    if (lane == nullptr || !lane->has_steps) return false;
    wake = take_due(*lane, now, batch);
  }
  if (wake) work_.notify_one();
  return true;
}

bool Scheduler::try_take(TakenBatch& batch, LoopQueue& loop) {
  // Its own requests and those of all take turns, while there are both.
  const bool own_first = !ready_.has_short() || !loop.had_turn;
  loop.had_turn = own_first && !loop.empty() && loop.take(batch, clock_.now());
  if (loop.had_turn) return true;
  if (ready_.has_short() && take_short(batch)) return true;
  return !own_first && !loop.empty() && loop.take(batch, clock_.now());
}

bool Scheduler::take_short(TakenBatch& batch) {
  std::unique_lock lock(mutex_);
  const Nanos now = clock_.now();
  ready_.release(now);
  bool wake = false;
  Lane* const lane = ready_.first_short([&](Lane& each) {
    if (fits_loop(each)) return true;
    // Batches take longer now than when its tickets came: they are for workers.
    each.has_short = false;
    ready_.update(each);
    call_worker(each);
    wake = true;
    return false;
  });
  if (lane != nullptr) {
    const std::uint64_t rows = workers_ == 0 ? LaneQueue::kAnySize : lane->cost.rows_within(kLoopBudget);
    take(*lane, now, {rows, rows}, batch);
    const LaneQueue& queue = lane->queue;
    if (!queue.empty() && (lane->release_at != 0 || !lane->has_short)) {
      // The caller has no timer: if tickets are left that wait for batch mates, a worker keeps the time. And
      // no loop takes what is not short.
      call_worker(*lane);
      wake = true;
    }
    // If it is more than this loop runs at once, an idle worker helps.
    wake |= !queue.empty() && lane->cost.of(queue.rows()) > kLoopBudget && a_core_is_free();
  }
  wake = wake && sleeping_workers_ > 0;
  lock.unlock();
  if (wake) work_.notify_one();
  return lane != nullptr;
}

bool Scheduler::take_between(const TakenBatch& running, std::uint64_t left, TakenBatch& batch) {
  const std::lock_guard lock(mutex_);
  if (ready_.empty()) return false;
  const Nanos now = clock_.now();
  ready_.release(now);
  const Lane& busy = *running.lane;
  const Nanos remaining = busy.cost.of(left);
  const Nanos used = busy.account->virtual_ns;
  const auto largest = [&](const Lane& lane) { return &lane == &busy ? left / 2 : LaneQueue::kAnySize; };
  Lane* const lane = ready_.first(
      [&](const Lane& each) {
        const std::size_t next = each.queue.next(largest(each));
        if (next == LaneQueue::kNone || is_full(each)) return false;
        const Nanos time = each.cost.of(each.queue.at(next).rows());
        if (time > kBetween) return false;  // nothing can go before it in its turn
        return &each == &busy || (each.account->virtual_ns <= used && time < remaining);
      },
      kBetweenLanes);
  if (lane == nullptr) return false;
  take(*lane, now, {lane->cost.rows_within(kBetween), largest(*lane)}, batch);
  return true;
}

}  // namespace fused_mlp
