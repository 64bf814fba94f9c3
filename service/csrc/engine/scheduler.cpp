#include "engine/scheduler.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace fused_mlp {

namespace {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

// For counters written only under the mutex: a plain store is cheaper than an atomic addition.
template <class T>
void add_under_mutex(std::atomic<T>& counter, T add) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + add, std::memory_order_relaxed);
}

// For one more, so that adding it cannot fail. False: there is no memory.
template <class T>
bool make_room(std::vector<T>& list) noexcept {
  if (list.size() < list.capacity()) return true;
  try {
    list.reserve(std::max<std::size_t>(16, 2 * list.size()));
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// When the queued tickets stop waiting for batch mates: max_wait_us after the first arrival. 0 (at once) if
// the batch is full or a ticket would expire while waiting.
Nanos release_time(const LaneQueue& queue, const LaneOptions& options) noexcept {
  if (options.max_wait_us == 0 || queue.empty()) return 0;
  const Nanos limit = queue.front()->arrival_ns + Nanos{options.max_wait_us} * 1000;
  std::uint64_t rows = 0;
  for (const Ticket* ticket = queue.front(); ticket; ticket = LaneQueue::after(ticket)) {
    if (ticket->deadline_ns != 0 && ticket->deadline_ns <= limit) return 0;
    rows += ticket->rows();
    if (rows >= options.max_batch_rows) return 0;
  }
  return limit;
}

}  // namespace

Scheduler::Scheduler(Clock& clock) : clock_(clock) {
  clock_.subscribe(this, [this] { wake_workers(); });
}

Scheduler::~Scheduler() { clock_.unsubscribe(this); }

void Scheduler::wake_workers() {
  const std::lock_guard lock(mutex_);
  work_.notify_all();
}

void Scheduler::add(std::shared_ptr<Lane> lane) {
  const std::lock_guard lock(mutex_);
  lanes_.push_back(std::move(lane));
}

void Scheduler::remove(const std::shared_ptr<Lane>& lane) {
  const std::lock_guard lock(mutex_);
  std::erase(lanes_, lane);  // never the last reference: the caller holds one
  lane->removed_ = true;
  work_.notify_all();  // its queued tickets no longer wait for batch mates
}

Status Scheduler::submit(Lane& lane, Ref<Ticket>&& ticket, Wake wake) {
  if (ticket->arrival_ns == 0) ticket->arrival_ns = clock_.now();
  const Nanos now = ticket->arrival_ns;
  const Nanos deadline = ticket->deadline_ns;
  const LaneOptions& options = lane.options_;
  if (deadline != 0 && deadline <= now) {
    lane.metrics_.refuse(Refusal::deadline);
    return Status::deadline_expired;
  }
  bool notify = false;
  {
    const std::lock_guard lock(mutex_);
    if (draining_) {
      lane.metrics_.refuse(Refusal::draining);
      return Status::shutting_down;
    }
    LaneQueue& queue = lane.queue_;
    const bool was_empty = queue.empty();
    // An empty queue accepts any ticket: otherwise a request of more than queue_rows would always be refused.
    if (!was_empty && queue.rows() + ticket->rows() > options.queue_rows) {
      lane.metrics_.refuse(Refusal::queue_full);
      return Status::overloaded;
    }
    if (was_empty) ready_.push_back(lane.shared_from_this());
    add_under_mutex<std::uint64_t>(lane.metrics_.rows, ticket->rows());
    lane.metrics_.in_flight.fetch_add(1, std::memory_order_relaxed);
    outstanding_.fetch_add(1);
    queue.push(std::move(ticket));
    lane.metrics_.queued_rows.store(queue.rows(), std::memory_order_relaxed);

    // The first ticket of a lane wakes one worker. That worker takes a full batch and, if tickets are left,
    // wakes the next worker. Later tickets wake a worker only if they end the wait of a lane.
    const bool caller_serves = wake == Wake::caller && !lane.needs_python_;
    bool needs_worker = was_empty;
    if (options.max_wait_us != 0) {
      const Nanos before = was_empty ? 0 : lane.release_at_;
      lane.release_at_ = was_empty ? now + Nanos{options.max_wait_us} * 1000 : before;
      if ((deadline != 0 && deadline <= lane.release_at_) || queue.rows() >= options.max_batch_rows) {
        lane.release_at_ = 0;
      }
      needs_worker = was_empty || (before != 0 && lane.release_at_ == 0);
    }
    // The caller has no timer: a lane that waits for batch mates needs a worker to keep the time.
    notify = needs_worker && sleeping_workers_ > 0 && !(caller_serves && lane.release_at_ == 0);
  }
  if (notify) work_.notify_one();
  return Status::ok;
}

bool Scheduler::is_due(const Lane& lane, Nanos now) const noexcept {
  return lane.release_at_ <= now || lane.removed_ || draining_;
}

// Round-robin: the next lane whose batch is due, or kNone and the time when one will be (0: unknown).
std::size_t Scheduler::pick_lane(Nanos now, bool with_python, Nanos& next_release) const noexcept {
  next_release = 0;
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    const std::size_t index = (next_ready_ + i) % ready_.size();
    const Lane& lane = *ready_[index];
    if (lane.needs_python_ && !with_python) continue;
    if (is_due(lane, now)) return index;
    if (next_release == 0 || lane.release_at_ < next_release) next_release = lane.release_at_;
  }
  return kNone;
}

void Scheduler::take(std::size_t index, Nanos now, TakenBatch& batch) noexcept {
  Lane& lane = *ready_[index];
  LaneQueue& queue = lane.queue_;
  const std::uint32_t limit = lane.options_.max_batch_rows;
  batch.rows = 0;
  batch.taken_at = now;
  bool full = false;
  while (!queue.empty() && !full) {
    if (!make_room(batch.dropped) || !make_room(batch.runnable)) break;  // the others stay in the queue
    const Ticket& first = *queue.front();
    if (first.cancelled()) {
      batch.dropped.push_back({queue.pop(), Status::cancelled});
    } else if (first.deadline_ns != 0 && first.deadline_ns <= now) {
      batch.dropped.push_back({queue.pop(), Status::deadline_expired});
    } else if (!batch.runnable.empty() && batch.rows + first.rows() > limit) {
      full = true;
    } else {
      batch.rows += first.rows();
      batch.runnable.push_back(queue.pop());
      full = batch.rows >= limit;
    }
  }
  batch.release = full ? Release::full : lane.options_.max_wait_us != 0 ? Release::wait : Release::idle;
  lane.release_at_ = release_time(queue, lane.options_);
  lane.metrics_.queued_rows.store(queue.rows(), std::memory_order_relaxed);
  if (queue.empty()) {
    batch.lane = std::move(ready_[index]);
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(index));
    next_ready_ = index;
  } else {
    batch.lane = ready_[index];
    next_ready_ = index + 1;
  }
}

bool Scheduler::wait_take(TakenBatch& batch) {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    const Nanos now = clock_.now();
    Nanos next_release = 0;
    const std::size_t index = pick_lane(now, /*with_python=*/true, next_release);
    if (index != kNone) {
      take(index, now, batch);
      // The remaining lanes, due or waiting, need another worker.
      if (!ready_.empty() && sleeping_workers_ > 0) work_.notify_one();
      return true;
    }
    ++sleeping_workers_;
    clock_.wait_until(work_, lock, next_release);
    --sleeping_workers_;
  }
  return false;
}

bool Scheduler::try_take(TakenBatch& batch) {
  const std::lock_guard lock(mutex_);
  if (ready_.empty()) return false;
  const Nanos now = clock_.now();
  Nanos next_release = 0;
  const std::size_t index = pick_lane(now, /*with_python=*/false, next_release);
  if (index == kNone) return false;
  take(index, now, batch);
  // The caller has no timer: if tickets are left that wait for batch mates, a worker keeps the time.
  if (sleeping_workers_ > 0 && !ready_.empty() && batch.lane->release_at_ != 0) work_.notify_one();
  return true;
}

void Scheduler::finished(std::size_t tickets) noexcept {
  // Sequentially consistent on both sides: either this thread sees the waiter, or the waiter sees zero.
  if (outstanding_.fetch_sub(tickets) == tickets && idle_waiters_.load() > 0) {
    const std::lock_guard lock(mutex_);
    idle_.notify_all();
  }
}

void Scheduler::begin_drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  work_.notify_all();
}

bool Scheduler::wait_idle(std::chrono::nanoseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  idle_waiters_.fetch_add(1);
  bool idle = false;
  {
    std::unique_lock lock(mutex_);
    idle = idle_.wait_until(lock, until, [this] { return outstanding_.load() == 0; });
  }
  idle_waiters_.fetch_sub(1);
  return idle;
}

void Scheduler::wait_idle() {
  idle_waiters_.fetch_add(1);
  {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return outstanding_.load() == 0; });
  }
  idle_waiters_.fetch_sub(1);
}

std::vector<TakenBatch> Scheduler::stop() {
  std::vector<TakenBatch> left;
  const std::lock_guard lock(mutex_);
  draining_ = true;
  stopped_ = true;
  for (std::shared_ptr<Lane>& lane : ready_) {
    TakenBatch& batch = left.emplace_back();
    while (!lane->queue_.empty()) batch.dropped.push_back({lane->queue_.pop(), Status::shutting_down});
    lane->metrics_.queued_rows.store(0, std::memory_order_relaxed);
    batch.lane = std::move(lane);
  }
  ready_.clear();
  work_.notify_all();
  return left;
}

}  // namespace fused_mlp
