#include "engine/scheduler.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/busy_threads.hpp"

namespace fused_mlp {

namespace {

// What a worker runs between two slices of another batch, and among how many lanes it looks for that.
constexpr Nanos kBetween = 300'000;
constexpr std::size_t kBetweenLanes = 32;

// When the queued tickets stop waiting for batch mates: max_wait_us after the first arrival. 0 (at once) if
// the batch is full or a ticket would expire while waiting.
Nanos release_time(const LaneQueue& queue, const LaneOptions& options) noexcept {
  if (queue.empty() || queue.rows() >= options.max_batch_rows) return 0;
  Nanos first_arrival = queue.at(queue.next()).arrival_ns, first_deadline = LaneQueue::kNoDeadline;
  queue.for_each([&](const Ticket& ticket) {
    first_arrival = std::min(first_arrival, ticket.arrival_ns);
    if (ticket.deadline_ns != 0) first_deadline = std::min(first_deadline, ticket.deadline_ns);
  });
  const Nanos limit = first_arrival + Nanos{options.max_wait_us} * 1000;
  return first_deadline <= limit ? 0 : limit;
}

}  // namespace

Scheduler::Scheduler(Clock& clock, unsigned workers) : clock_(clock), workers_(workers), admission_(workers) {
  clock_.subscribe(this, [this] { wake_all(); });
}

Scheduler::~Scheduler() { clock_.unsubscribe(this); }

void Scheduler::wake_all() {
  const std::lock_guard lock(mutex_);
  work_.notify_all();
}

void Scheduler::add(Lane& lane) {
  const std::lock_guard lock(mutex_);
  if (accounts_.size() > 2 * accounts_swept_ + 64) {
    std::erase_if(accounts_, [](const auto& each) { return each.second.expired(); });
    accounts_swept_ = accounts_.size();
  }
  if (!lane.options_.model.empty()) {
    std::weak_ptr<TimeAccount>& known = accounts_[lane.options_.model];
    lane.account_ = known.lock();
    if (!lane.account_) known = lane.account_ = std::make_shared<TimeAccount>();
  } else {
    lane.account_ = std::make_shared<TimeAccount>();
  }
}

void Scheduler::remove(const std::shared_ptr<Lane>& lane) {
  lane->removed_ = true;
  const std::lock_guard lock(mutex_);
  for (LoopQueue* const loop : loops_) loop->forget(*lane);
  // Its queued tickets no longer wait for batch mates.
  if (std::exchange(lane->release_at_, 0) != 0) ready_.update(*lane);
  work_.notify_all();
}

void Scheduler::open(LoopQueue& loop) {
  const std::lock_guard lock(mutex_);
  if (draining_) loop.close();
  loops_.push_back(&loop);
}

std::vector<TakenBatch> Scheduler::close(LoopQueue& loop) {
  std::vector<TakenBatch> left;
  const std::lock_guard lock(mutex_);
  loop.drop_all(left);
  std::erase(loops_, &loop);
  accepted_ += loop.accepted;
  ended_ += loop.ended;
  return left;
}

// ---- Submitting ----

void Scheduler::submit(std::span<Submission> list, LoopQueue* loop) {
  for (Submission& each : list) {
    Ticket& ticket = *each.ticket;
    if (ticket.arrival_ns == 0) ticket.arrival_ns = clock_.now();
    each.status = ticket.deadline_ns != 0 && ticket.deadline_ns <= ticket.arrival_ns
                      ? Status::deadline_expired
                      : Status::ok;
  }
  if (loop != nullptr && loop->keep(list) == 0) return;
  unsigned wakes = 0;
  {
    const std::lock_guard lock(mutex_);
    wakes = std::min(link_all(list, loop != nullptr), sleeping_workers_);
  }
  for (; wakes > 0; --wakes) work_.notify_one();
}

// Returns how many workers should wake for them.
unsigned Scheduler::link_all(std::span<Submission> list, bool by_loop) {
  unsigned wakes = 0;
  std::uint64_t accepted = 0, of_lane = 0, rows_of_lane = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    Submission& each = list[i];
    Lane& lane = *each.lane;
    if (each.ticket) {  // not kept by its loop
      if (draining_) each.status = Status::shutting_down;
      if (each.status == Status::ok) each.status = admission_.admit(lane, *each.ticket);
      if (each.status == Status::ok) {
        const std::uint32_t rows = each.ticket->rows();
        try {
          wakes += link(lane, std::move(each.ticket), by_loop);
          ++of_lane;
          rows_of_lane += rows;
        } catch (const std::bad_alloc&) {
          each.status = Status::kernel_error;
        }
      }
      if (each.status != Status::ok) lane.metrics_->refuse(refusal_of(each.status));
    }
    if (of_lane != 0 && (i + 1 == list.size() || list[i + 1].lane != &lane)) {
      lane.metrics_->accept(of_lane, rows_of_lane);
      lane.queued_rows_.store(lane.queue_.rows(), std::memory_order_relaxed);
      accepted += std::exchange(of_lane, 0);
      rows_of_lane = 0;
    }
  }
  accepted_.fetch_add(accepted, std::memory_order_relaxed);
  return wakes;
}

// Queues it. True if a worker should wake for it: the first of a lane that is for workers wakes one, which
// takes a batch and, if tickets are left, wakes the next.
bool Scheduler::link(Lane& lane, Ref<Ticket>&& ticket, bool by_loop) {
  LaneQueue& queue = lane.queue_;
  const LaneOptions& options = lane.options_;
  const bool was_empty = queue.empty();
  const std::uint64_t rows_before = queue.rows();
  const std::uint32_t rows = ticket->rows();
  const Nanos arrival = ticket->arrival_ns, deadline = ticket->deadline_ns;
  if (was_empty) ready_.add(lane);
  try {
    queue.push(std::move(ticket));
  } catch (const std::bad_alloc&) {
    if (was_empty) ready_.update(lane);
    throw;
  }
  const bool is_short = !lane.needs_worker_ && (workers_ == 0 || lane.cost_.of(rows) <= kLoopBudget);
  const bool loop_runs_it = by_loop && is_short;
  const Nanos release_before = lane.release_at_;
  bool wake = !loop_runs_it && !lane.worker_called_;
  bool changed = was_empty || (is_short && !lane.has_short_);
  if (was_empty) {
    lane.self_ = lane.shared_from_this();
    lane.waits_since_ = arrival;
    lane.release_at_ = 0;
    lane.has_short_ = false;
  }
  lane.has_short_ |= is_short;
  if (loop_runs_it) {
    // More than a loop runs at once: a worker helps, if it has a core.
    wake |= lane.cost_.of(rows_before) <= kLoopBudget && lane.cost_.of(queue.rows()) > kLoopBudget &&
            a_core_is_free();
  } else if (lane.running_ != 0) {
    const std::uint64_t worth = lane.cost_.rows_worth_fixed();
    wake |= rows_before < worth && queue.rows() >= worth;
  }
  if (options.max_wait_us != 0) {
    Nanos& release_at = lane.release_at_;
    if (was_empty && !lane.removed_) release_at = arrival + Nanos{options.max_wait_us} * 1000;
    if ((deadline != 0 && deadline <= release_at) || queue.rows() >= options.max_batch_rows) release_at = 0;
    // The caller has no timer: a lane that waits for batch mates needs a worker to keep the time.
    const bool released = release_before != 0 && release_at == 0;
    changed |= released;
    const bool needs_worker = !loop_runs_it || release_at != 0;
    wake = needs_worker && (was_empty || released || !lane.worker_called_);
  }
  if (wake) call_worker(lane);
  const bool sooner = deadline != 0 && lane.in_order_.in() && deadline < lane.in_order_.rank().deadline;
  if (changed || sooner) ready_.update(lane);
  return wake;
}

// A lane with tickets that no loop takes, or whose time a worker keeps, has been through here since it was
// empty: until it is empty again, a worker that takes a batch wakes the next before it begins.
void Scheduler::call_worker(Lane& lane) noexcept {
  if (!std::exchange(lane.worker_called_, true)) ++lanes_with_workers_;
}

// ---- Taking ----

bool Scheduler::fits_loop(const Lane& lane) const noexcept {
  if (lane.needs_worker_) return false;
  return workers_ == 0 || lane.queue_.next(lane.cost_.rows_within(kLoopBudget)) != LaneQueue::kNone;
}

// When a worker takes a batch of this lane. Beside another batch of the same lane only if the rows are worth
// the fixed part of a batch, or have waited for as long: otherwise more workers would just mean smaller
// batches.
Nanos Scheduler::worker_takes_at(const Lane& lane) const noexcept {
  if (lane.running_ == 0 || draining_ || lane.removed_) return 0;
  const std::uint64_t rows = lane.queue_.rows();
  if (rows >= lane.options_.max_batch_rows || rows >= lane.cost_.rows_worth_fixed()) return 0;
  return lane.waits_since_ + lane.cost_.fixed(rows);
}

// How many rows a worker takes: all, or a part if others are idle and the kernel uses one core. Each part has
// rows for twice the fixed part.
std::uint64_t Scheduler::share_rows(const Lane& lane) const noexcept {
  if (!lane.options_.one_core || sleeping_workers_ == 0) return LaneQueue::kAnySize;
  const std::uint64_t parts = sleeping_workers_ + 1;
  return std::max((lane.queue_.rows() + parts - 1) / parts, 2 * lane.cost_.rows_worth_fixed());
}

// Of a batch: `rows` in all, unless a single ticket has more, and none of more than `largest`.
struct Scheduler::Limits {
  std::uint64_t rows = LaneQueue::kAnySize, largest = LaneQueue::kAnySize;
};

void Scheduler::take(Lane& lane, Nanos now, const Limits& limits, TakenBatch& batch) noexcept {
  LaneQueue& queue = lane.queue_;
  const std::uint64_t limit = std::min<std::uint64_t>(lane.options_.max_batch_rows, limits.rows);
  batch.rows = 0;
  batch.taken_at = now;
  bool full = false;
  while (!full) {
    const std::size_t first = queue.next(limits.largest);
    if (first == LaneQueue::kNone || !batch.make_room()) break;  // the others stay in the queue
    const Ticket& ticket = queue.at(first);
    const Status status = Admission::judge(lane, ticket, now);
    if (status != Status::ok) {
      batch.dropped.push_back({queue.pop(first), status});
    } else if (!batch.runnable.empty() && batch.rows + ticket.rows() > limit) {
      full = true;
    } else {
      batch.rows += ticket.rows();
      batch.runnable.push_back(queue.pop(first));
      full = batch.rows >= limit;
    }
  }
  batch.release = full ? Release::full : lane.options_.max_wait_us != 0 ? Release::wait : Release::idle;
  batch.estimate = lane.cost_.of(batch.rows);
  batch.from_queue = true;
  ++lane.running_;
  lane.queued_rows_.store(queue.rows(), std::memory_order_relaxed);
  if (queue.empty()) {
    batch.lane = std::move(lane.self_);
    lanes_with_workers_ -= std::exchange(lane.worker_called_, false);
  } else {
    batch.lane = lane.self_;
    lane.waits_since_ = queue.at(queue.next()).arrival_ns;
    lane.has_short_ = fits_loop(lane);
    if (lane.options_.max_wait_us != 0 && !lane.removed_ && !draining_) {
      lane.release_at_ = release_time(queue, lane.options_);
    }
  }
  ready_.serve(lane, batch.estimate);
}

Scheduler::Wait Scheduler::wait_take(TakenBatch& batch, Nanos idle_at) {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    const Nanos now = clock_.now();
    Nanos next_look = ready_.release(now);
    Lane* const lane = ready_.first([&](const Lane& each) {
      const Nanos at = worker_takes_at(each);
      if (at > now && (next_look == 0 || at < next_look)) next_look = at;
      return at <= now;
    });
    if (lane != nullptr) {
      take(*lane, now, {share_rows(*lane)}, batch);
      // The remaining lanes, due or waiting, need another worker.
      const bool wake = sleeping_workers_ > 0 && lanes_with_workers_ > 0;
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
    each.has_short_ = false;
    ready_.update(each);
    call_worker(each);
    wake = true;
    return false;
  });
  if (lane != nullptr) {
    const std::uint64_t rows = workers_ == 0 ? LaneQueue::kAnySize : lane->cost_.rows_within(kLoopBudget);
    take(*lane, now, {rows, rows}, batch);
    const LaneQueue& queue = lane->queue_;
    if (!queue.empty() && (lane->release_at_ != 0 || !lane->has_short_)) {
      // The caller has no timer: if tickets are left that wait for batch mates, a worker keeps the time. And
      // no loop takes what is not short.
      call_worker(*lane);
      wake = true;
    }
    // If it is more than this loop runs at once, an idle worker helps.
    wake |= !queue.empty() && lane->cost_.of(queue.rows()) > kLoopBudget && a_core_is_free();
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
  const Nanos remaining = busy.cost_.of(left);
  const Nanos used = busy.account_->virtual_ns;
  const auto largest = [&](const Lane& lane) { return &lane == &busy ? left / 2 : LaneQueue::kAnySize; };
  Lane* const lane = ready_.first(
      [&](const Lane& each) {
        const std::size_t next = each.queue_.next(largest(each));
        if (next == LaneQueue::kNone) return false;
        const Nanos time = each.cost_.of(each.queue_.at(next).rows());
        if (time > kBetween) return false;  // nothing can go before it in its turn
        return &each == &busy || (each.account_->virtual_ns <= used && time < remaining);
      },
      kBetweenLanes);
  if (lane == nullptr) return false;
  take(*lane, now, {lane->cost_.rows_within(kBetween), largest(*lane)}, batch);
  return true;
}

void Scheduler::finished(TakenBatch& batch, std::size_t tickets, LoopQueue* loop) noexcept {
  if (batch.from_queue) {
    const std::lock_guard lock(mutex_);
    --batch.lane->running_;
    ready_.charge(*batch.lane, batch.spent - batch.estimate);
  }
  // Sequentially consistent on both sides: either this thread sees the waiter, or the waiter sees that these
  // have ended.
  if (loop != nullptr) {
    loop->finished(batch, tickets);
  } else {
    batch.lane.reset();
    ended_.fetch_add(tickets);
  }
  if (idle_waiters_.load() > 0) {
    const std::lock_guard lock(mutex_);
    idle_.notify_all();
  }
}

// ---- The end ----

// Those that have ended are counted first: if both are equal, then at that moment none was outstanding.
std::uint64_t Scheduler::count_outstanding() const noexcept {
  std::uint64_t ended = ended_.load();
  for (const LoopQueue* const loop : loops_) ended += loop->ended.load();
  std::uint64_t accepted = accepted_.load();
  for (const LoopQueue* const loop : loops_) accepted += loop->accepted.load();
  return accepted - ended;
}

std::uint64_t Scheduler::outstanding() const {
  const std::lock_guard lock(mutex_);
  return count_outstanding();
}

void Scheduler::begin_drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  for (LoopQueue* const loop : loops_) loop->close();
  ready_.release_all();
  work_.notify_all();
}

bool Scheduler::wait_idle(std::chrono::nanoseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  idle_waiters_.fetch_add(1);
  bool idle = false;
  {
    std::unique_lock lock(mutex_);
    idle = idle_.wait_until(lock, until, [this] { return count_outstanding() == 0; });
  }
  idle_waiters_.fetch_sub(1);
  return idle;
}

void Scheduler::wait_idle() {
  idle_waiters_.fetch_add(1);
  {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return count_outstanding() == 0; });
  }
  idle_waiters_.fetch_sub(1);
}

std::vector<TakenBatch> Scheduler::stop() {
  std::vector<TakenBatch> left;
  const std::lock_guard lock(mutex_);
  draining_ = true;
  stopped_ = true;
  for (LoopQueue* const loop : loops_) loop->drop_all(left);
  while (Lane* const lane = ready_.any()) {
    TakenBatch& batch = left.emplace_back();
    while (!lane->queue_.empty()) {
      batch.dropped.push_back({lane->queue_.pop(lane->queue_.next()), Status::shutting_down});
    }
    lane->queued_rows_.store(0, std::memory_order_relaxed);
    batch.lane = std::move(lane->self_);
    ready_.update(*lane);
  }
  work_.notify_all();
  return left;
}

}  // namespace fused_mlp
