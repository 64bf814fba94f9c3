#include "engine/scheduler.hpp"

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "engine/busy_threads.hpp"

namespace fused_mlp {

namespace {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);
// A deadline is given up only if the estimate says that it takes this many times too long.
constexpr Nanos kSurely = 2;
// What a worker runs between two slices of another batch.
constexpr Nanos kBetween = 300'000;

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
Nanos release_time(const LaneQueue& queue, const LaneOptions& options, Nanos first_arrival) noexcept {
  if (options.max_wait_us == 0 || queue.empty() || queue.rows() >= options.max_batch_rows) return 0;
  Nanos limit = first_arrival + Nanos{options.max_wait_us} * 1000;
  queue.for_each([&limit](const Ticket& ticket) {
    if (ticket.deadline_ns != 0 && ticket.deadline_ns <= limit) limit = 0;
  });
  return limit;
}

Nanos virtual_time(const Lane& lane, Nanos time) noexcept {
  return static_cast<Nanos>(static_cast<double>(time) / lane.weight());
}

bool a_core_is_free() noexcept {
  static const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  return busy_threads.load(std::memory_order_relaxed) < cores;
}

}  // namespace

Scheduler::Scheduler(Clock& clock, unsigned workers) : clock_(clock), workers_(workers) {
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

// ---- Submitting ----

void Scheduler::submit(std::span<Submission> list, const void* loop) {
  for (Submission& each : list) {
    Ticket& ticket = *each.ticket;
    if (ticket.arrival_ns == 0) ticket.arrival_ns = clock_.now();
    each.status = ticket.deadline_ns != 0 && ticket.deadline_ns <= ticket.arrival_ns
                      ? Status::deadline_expired
                      : Status::ok;
  }
  unsigned wakes = 0;
  {
    const std::lock_guard lock(mutex_);
    std::uint64_t accepted = 0, of_lane = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      Submission& each = list[i];
      Lane& lane = *each.lane;
      if (each.status == Status::ok) each.status = admit(lane, *each.ticket);
      if (each.status == Status::ok) {
        try {
          wakes += link(lane, std::move(each.ticket), loop);
          ++accepted;
          ++of_lane;
        } catch (const std::bad_alloc&) {
          each.status = Status::kernel_error;
        }
      } else {
        lane.metrics_.refuse(refusal_of(each.status));
      }
      if (of_lane != 0 && (i + 1 == list.size() || list[i + 1].lane != &lane)) {
        lane.metrics_.in_flight.fetch_add(of_lane, std::memory_order_relaxed);
        lane.metrics_.queued_rows.store(lane.queue_.rows(), std::memory_order_relaxed);
        of_lane = 0;
      }
    }
    outstanding_.fetch_add(accepted);
    wakes = std::min(wakes, sleeping_workers_);
  }
  for (; wakes > 0; --wakes) work_.notify_one();
}

Status Scheduler::admit(Lane& lane, const Ticket& ticket) const noexcept {
  if (draining_) return Status::shutting_down;
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
bool Scheduler::is_owed_a_place(const Lane& lane, const Ticket& ticket) noexcept {
  const LaneQueue& queue = lane.queue_;
  const std::uint64_t most = lane.options_.queue_rows;
  return queue.rows() + ticket.rows() <= 2 * most &&
         queue.rows_of(ticket.flow) + ticket.rows() <= most / (queue.flows() + 1);
}

// Queues it. True if a worker should wake for it: the first of a lane that is for workers wakes one, which
// takes a batch and, if tickets are left, wakes the next.
bool Scheduler::link(Lane& lane, Ref<Ticket>&& ticket, const void* loop) {
  LaneQueue& queue = lane.queue_;
  const LaneOptions& options = lane.options_;
  const bool was_empty = queue.empty();
  const std::uint64_t rows_before = queue.rows();
  const std::uint32_t rows = ticket->rows();
  const Nanos arrival = ticket->arrival_ns, deadline = ticket->deadline_ns;
  if (was_empty && !make_room(ready_)) throw std::bad_alloc();
  const bool loop_runs_it =
      loop != nullptr && !lane.needs_worker_ && (workers_ == 0 || lane.cost_.of(rows) <= kLoopBudget);
  const bool worker_knows = queue.rows() > queue.loop_rows();
  queue.push(std::move(ticket), loop_runs_it);
  add_under_mutex<std::uint64_t>(lane.metrics_.rows, rows);
  if (was_empty) {
    ready_.push_back(lane.shared_from_this());
    ready_count_.store(ready_.size(), std::memory_order_relaxed);
    lane.loop_ = loop;
    lane.waits_since_ = arrival;
    lane.release_at_ = 0;
    // Time in which it had nothing to do gives it no claim.
    const Nanos behind = virtual_now_ - lane.virtual_ns_.load(std::memory_order_relaxed);
    if (behind > 0) lane.virtual_ns_.fetch_add(behind, std::memory_order_relaxed);
  } else if (lane.loop_ != loop) {
    lane.loop_ = nullptr;
  }
  bool wake = !loop_runs_it && !worker_knows;
  if (!loop_runs_it && lane.running_.load(std::memory_order_relaxed) != 0) {
    const std::uint64_t worth = lane.cost_.rows_worth_fixed();
    wake |= rows_before < worth && queue.rows() >= worth;
  }
  if (options.max_wait_us != 0) {
    const Nanos before = lane.release_at_;
    Nanos& release_at = lane.release_at_;
    if (was_empty) release_at = arrival + Nanos{options.max_wait_us} * 1000;
    if ((deadline != 0 && deadline <= release_at) || queue.rows() >= options.max_batch_rows) release_at = 0;
    // The caller has no timer: a lane that waits for batch mates needs a worker to keep the time.
    const bool changed = was_empty || (before != 0 && release_at == 0);
    wake = changed && (!loop_runs_it || release_at != 0);
  }
  return wake;
}

// ---- Choosing ----

bool Scheduler::is_due(const Lane& lane, Nanos now) const noexcept {
  return lane.release_at_ <= now || lane.removed_ || draining_;
}

bool Scheduler::fits_loop(const Lane& lane) const noexcept {
  if (workers_ == 0) return true;
  return lane.queue_.next(lane.cost_.rows_within(kLoopBudget)) != nullptr;
}

// What an event loop has submitted it runs itself, as one batch. Others take it if it is more than that loop
// can run at once, or if it came before the time that this returns: then the loop has not come to it for
// long.
Nanos Scheduler::loops_until(const Lane& lane, Nanos now) const noexcept {
  if (lane.release_at_ != 0 || lane.removed_ || draining_) return LaneQueue::kEver;
  const std::uint64_t rows = lane.queue_.loop_rows();
  const bool too_many = rows >= lane.options_.max_batch_rows || lane.cost_.of(rows) > kLoopBudget;
  return rows == 0 || too_many ? LaneQueue::kEver : now - kAged;
}

bool Scheduler::is_for_worker(const Lane& lane, Nanos now) const noexcept {
  return lane.queue_.next(LaneQueue::kAnySize, loops_until(lane, now)) != nullptr;
}

bool Scheduler::is_left_to_loop(const Lane& lane, const void* loop, Nanos now) const noexcept {
  if (lane.loop_ == loop || lane.loop_ == nullptr) return false;
  return lane.waits_since_ > loops_until(lane, now);
}

// When a worker takes a batch of this lane. Beside another batch of the same lane only if the rows are worth
// the fixed part of a batch, or have waited for as long: otherwise more workers would just mean smaller
// batches.
Nanos Scheduler::worker_takes_at(const Lane& lane) const noexcept {
  if (lane.removed_ || draining_) return 0;
  if (lane.release_at_ != 0) return lane.release_at_;
  if (lane.running_.load(std::memory_order_relaxed) == 0) return 0;
  const std::uint64_t rows = lane.queue_.rows();
  if (rows >= lane.options_.max_batch_rows || rows >= lane.cost_.rows_worth_fixed()) return 0;
  return lane.waits_since_ + lane.cost_.fixed(rows);
}

// Of the lanes that `allowed` lets through, the one that has had the least time for its weight; among those
// that have had the same share, the one with the nearest deadline; among equals, the one that waited longest
// for a turn.
template <class Allowed>
std::size_t Scheduler::choose(Allowed allowed) const noexcept {
  std::size_t best = kNone, candidates = 0;
  const auto time = [this](std::size_t i) { return ready_[i]->virtual_ns_.load(std::memory_order_relaxed); };
  const auto behind = [&](std::size_t a, std::size_t b) {
    return time(a) != time(b) ? time(a) < time(b) : ready_[a]->turn_ < ready_[b]->turn_;
  };
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    if (!allowed(*ready_[i])) continue;
    ++candidates;
    if (best == kNone || behind(i, best)) best = i;
  }
  if (candidates < 2) return best;
  const Nanos same_share = time(best) + kSameShare;
  Nanos nearest = ready_[best]->queue_.nearest_deadline();
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    if (time(i) > same_share || !allowed(*ready_[i])) continue;
    const Nanos deadline = ready_[i]->queue_.nearest_deadline();
    if (deadline != 0 && (nearest == 0 || deadline < nearest)) {
      nearest = deadline;
      best = i;
    }
  }
  return best;
}

// How many rows a worker takes: all, or a part if others are idle and the kernel uses one core. Each part has
// rows for twice the fixed part.
std::uint64_t Scheduler::share_rows(const Lane& lane) const noexcept {
  if (!lane.options_.one_core || sleeping_workers_ == 0) return LaneQueue::kAnySize;
  const std::uint64_t parts = sleeping_workers_ + 1;
  return std::max((lane.queue_.rows() + parts - 1) / parts, 2 * lane.cost_.rows_worth_fixed());
}

// ---- Taking ----

// Of a batch: `rows` in all, unless a single ticket has more, none of more than `largest`, and `loops_until`
// as in LaneQueue::next.
struct Scheduler::Limits {
  std::uint64_t rows = LaneQueue::kAnySize, largest = LaneQueue::kAnySize;
  Nanos loops_until = LaneQueue::kEver;
};

void Scheduler::take(std::size_t index, Nanos now, const Limits& limits, TakenBatch& batch) noexcept {
  Lane& lane = *ready_[index];
  LaneQueue& queue = lane.queue_;
  const std::uint64_t limit = std::min<std::uint64_t>(lane.options_.max_batch_rows, limits.rows);
  batch.rows = 0;
  batch.taken_at = now;
  bool full = false;
  while (!full) {
    const Ticket* const first = queue.next(limits.largest, limits.loops_until);
    if (first == nullptr) break;
    if (!make_room(batch.dropped) || !make_room(batch.runnable)) break;  // the others stay in the queue
    if (first->cancelled()) {
      batch.dropped.push_back({queue.pop(first), Status::cancelled});
    } else if (is_too_late(lane, *first, now)) {
      batch.dropped.push_back({queue.pop(first), Status::deadline_expired});
    } else if (!batch.runnable.empty() && batch.rows + first->rows() > limit) {
      full = true;
    } else {
      batch.rows += first->rows();
      batch.runnable.push_back(queue.pop(first));
      full = batch.rows >= limit;
    }
  }
  batch.release = full ? Release::full : lane.options_.max_wait_us != 0 ? Release::wait : Release::idle;
  batch.charged = lane.cost_.of(batch.rows);
  virtual_now_ = std::max(virtual_now_, lane.virtual_ns_.load(std::memory_order_relaxed));
  lane.virtual_ns_.fetch_add(virtual_time(lane, batch.charged), std::memory_order_relaxed);
  lane.running_.fetch_add(1, std::memory_order_relaxed);
  lane.turn_ = ++turns_;
  lane.metrics_.queued_rows.store(queue.rows(), std::memory_order_relaxed);
  if (queue.empty()) {
    batch.lane = std::move(ready_[index]);
    ready_[index] = std::move(ready_.back());
    ready_.pop_back();
    ready_count_.store(ready_.size(), std::memory_order_relaxed);
  } else {
    batch.lane = ready_[index];
    lane.waits_since_ = queue.oldest_arrival();
    lane.release_at_ = release_time(queue, lane.options_, lane.waits_since_);
  }
}

// Cannot make its deadline, by the estimate for its rows alone. Each time the estimate decides, it loses some
// of its weight, so that a wrong one does not refuse for ever.
bool Scheduler::is_too_late(Lane& lane, const Ticket& ticket, Nanos now) noexcept {
  if (ticket.deadline_ns == 0) return false;
  if (ticket.deadline_ns <= now) return true;
  if (!lane.cost_.known(ticket.rows())) return false;
  const double time = static_cast<double>(lane.cost_.of(ticket.rows())) * lane.cost_.trust();
  if (time <= kSurely * static_cast<double>(ticket.deadline_ns - now)) return false;
  lane.cost_.doubt();
  return true;
}

bool Scheduler::wants_worker(Nanos now) const noexcept {
  return std::any_of(ready_.begin(), ready_.end(),
                     [&](const auto& lane) { return is_for_worker(*lane, now); });
}

bool Scheduler::wait_take(TakenBatch& batch) {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    const Nanos now = clock_.now();
    Nanos next_look = 0;
    const std::size_t index = choose([&](const Lane& lane) {
      if (!is_for_worker(lane, now)) return false;
      const Nanos at = worker_takes_at(lane);
      if (at > now && (next_look == 0 || at < next_look)) next_look = at;
      return at <= now;
    });
    if (index != kNone) {
      const Lane& lane = *ready_[index];
      take(index, now, {share_rows(lane), LaneQueue::kAnySize, loops_until(lane, now)}, batch);
      // The remaining lanes, due or waiting, need another worker.
      if (sleeping_workers_ > 0 && wants_worker(now)) work_.notify_one();
      return true;
    }
    ++sleeping_workers_;
    clock_.wait_until(work_, lock, next_look);
    --sleeping_workers_;
  }
  return false;
}

bool Scheduler::try_take(TakenBatch& batch, const void* loop) {
  if (ready_count_.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(mutex_);
  const Nanos now = clock_.now();
  bool hand_over = false;
  const std::size_t index = choose([&](const Lane& lane) {
    if (lane.needs_worker_ || !is_due(lane, now) || is_left_to_loop(lane, loop, now)) return false;
    if (fits_loop(lane)) return true;
    hand_over |= lane.queue_.loop_rows() != 0;
    return false;
  });
  // Batches take longer now than when the tickets came.
  if (hand_over) {
    for (const auto& lane : ready_) {
      if (!fits_loop(*lane)) lane->queue_.hand_to_workers();
    }
  }
  bool wake = hand_over;
  if (index != kNone) {
    const Lane& lane = *ready_[index];
    const std::uint64_t rows = workers_ == 0 ? LaneQueue::kAnySize : lane.cost_.rows_within(kLoopBudget);
    take(index, now, {rows, rows, LaneQueue::kEver}, batch);
    // The caller has no timer: if tickets are left that wait for batch mates, a worker keeps the time. If it
    // is more than this loop runs at once, an idle worker helps.
    const Lane& taken = *batch.lane;
    wake |= taken.release_at_ != 0 && !taken.queue_.empty();
    wake |= sleeping_workers_ > 0 && a_core_is_free() && is_for_worker(taken, now);
  }
  if (wake && sleeping_workers_ > 0) work_.notify_one();
  return index != kNone;
}

bool Scheduler::take_between(const TakenBatch& running, std::uint64_t left, TakenBatch& batch) {
  if (ready_count_.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(mutex_);
  const Nanos now = clock_.now();
  const Lane& busy = *running.lane;
  const Nanos remaining = busy.cost_.of(left);
  const Nanos used = busy.virtual_ns_.load(std::memory_order_relaxed);
  const std::size_t index = choose([&](const Lane& lane) {
    if (!is_due(lane, now)) return false;
    const Ticket* const next =
        lane.queue_.next(&lane == &busy ? left / 2 : LaneQueue::kAnySize, loops_until(lane, now));
    // Nothing can go before it in its turn: it must be short.
    if (next == nullptr || lane.cost_.of(next->rows()) > kBetween) return false;
    return &lane == &busy || (lane.virtual_ns_.load(std::memory_order_relaxed) <= used &&
                              lane.cost_.of(next->rows()) < remaining);
  });
  if (index == kNone) return false;
  const Lane& lane = *ready_[index];
  take(index, now,
       {lane.cost_.rows_within(kBetween), &lane == &busy ? left / 2 : LaneQueue::kAnySize,
        loops_until(lane, now)},
       batch);
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
    while (const Ticket* next = lane->queue_.next()) {
      batch.dropped.push_back({lane->queue_.pop(next), Status::shutting_down});
    }
    lane->metrics_.queued_rows.store(0, std::memory_order_relaxed);
    lane->running_.fetch_add(1, std::memory_order_relaxed);  // until its runner is done with it
    batch.lane = std::move(lane);
  }
  ready_.clear();
  ready_count_.store(0, std::memory_order_relaxed);
  work_.notify_all();
  return left;
}

}  // namespace fused_mlp
