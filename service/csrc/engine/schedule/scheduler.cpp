// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/scheduler.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/run/busy_threads.hpp"

namespace fused_mlp {

Scheduler::Scheduler(Clock& clock, unsigned workers) : clock_(clock), workers_(workers) {
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
  if (!lane.options.model.empty()) {
    std::weak_ptr<TimeAccount>& known = accounts_[lane.options.model];
    lane.account = known.lock();
    if (!lane.account) known = lane.account = std::make_shared<TimeAccount>();
  } else {
    lane.account = std::make_shared<TimeAccount>();
  }
}

void Scheduler::remove(const std::shared_ptr<Lane>& lane) {
  lane->removed = true;
  const std::lock_guard lock(mutex_);
  for (LoopQueue* const loop : loops_) loop->forget(*lane);
  // Its queued tickets no longer wait for batch mates.
  if (std::exchange(lane->release_at, 0) != 0) ready_.update(*lane);
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
  const Nanos now = clock_.now();
  std::uint64_t accepted = 0, of_lane = 0, rows_of_lane = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    Submission& each = list[i];
    Lane& lane = *each.lane;
    if (each.ticket) {  // not kept by its loop
      if (draining_) each.status = Status::shutting_down;
      if (each.status == Status::ok) {
        each.status =
            Admission::admit(lane, *each.ticket, now, promised_, ready_.share(lane), cores_for(lane));
      }
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
      if (each.status != Status::ok) lane.metrics->refuse(refusal_of(each.status));
    }
    if (of_lane != 0 && (i + 1 == list.size() || list[i + 1].lane != &lane)) {
      lane.metrics->accept(of_lane, rows_of_lane);
      recount(lane);
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
  LaneQueue& queue = lane.queue;
  const LaneOptions& options = lane.options;
  const bool was_empty = queue.empty();
  const std::uint64_t rows_before = queue.rows();
  const std::uint32_t rows = ticket->rows();
  const Nanos arrival = ticket->arrival_ns, deadline = ticket->deadline_ns;
  const Nanos due = Admission::due(lane, *ticket);
  if (was_empty) ready_.add(lane);
  try {
    queue.push(std::move(ticket), due);
  } catch (const std::bad_alloc&) {
    if (was_empty) ready_.update(lane);
    throw;
  }
  const bool is_short = !lane.needs_worker && (workers_ == 0 || lane.cost.of(rows) <= kLoopBudget);
  const bool loop_runs_it = by_loop && is_short;
  const Nanos release_before = lane.release_at;
  bool wake = !loop_runs_it && !lane.worker_called;
  bool changed = was_empty || (is_short && !lane.has_short);
  if (was_empty) {
    lane.self = lane.shared_from_this();
    lane.waits_since = arrival;
    lane.release_at = 0;
    lane.has_short = false;
  }
  lane.has_short |= is_short;
  if (loop_runs_it) {
    // More than a loop runs at once: a worker helps, if it has a core.
    wake |= lane.cost.of(rows_before) <= kLoopBudget && lane.cost.of(queue.rows()) > kLoopBudget &&
            a_core_is_free();
  } else if (lane.running != 0) {
    const std::uint64_t worth = lane.cost.rows_worth_fixed();
    wake |= rows_before < worth && queue.rows() >= worth;
  }
  if (options.max_wait_us != 0) {
    Nanos& release_at = lane.release_at;
    if (was_empty && !lane.removed) release_at = arrival + Nanos{options.max_wait_us} * 1000;
    if ((deadline != 0 && deadline <= release_at) || queue.rows() >= options.max_batch_rows) release_at = 0;
    // The caller has no timer: a lane that waits for batch mates needs a worker to keep the time.
    const bool released = release_before != 0 && release_at == 0;
    changed |= released;
    const bool needs_worker = !loop_runs_it || release_at != 0;
    wake = needs_worker && (was_empty || released || !lane.worker_called);
  }
  if (wake) call_worker(lane);
  const bool sooner = lane.in_order.in() && due < lane.in_order.rank().due;
  if (changed || sooner) ready_.update(lane);
  return wake;
}

// A lane with tickets that no loop takes, or whose time a worker keeps, has been through here since it was
// empty: until it is empty again, a worker that takes a batch wakes the next before it begins.
void Scheduler::call_worker(Lane& lane) noexcept {
  if (!std::exchange(lane.worker_called, true)) ++lanes_with_workers_;
}

// The queue of a lane has changed.
void Scheduler::recount(Lane& lane) noexcept {
  lane.queued_rows.store(lane.queue.rows(), std::memory_order_relaxed);
  const Nanos queued = lane.time_of(lane.queue.rows());
  promised_.queued_ns += queued - std::exchange(lane.queued_ns, queued);
}

// How many batches of a lane run at once, when the machine does nothing else.
unsigned Scheduler::cores_for(const Lane& lane) const noexcept {
  const unsigned most = lane.needs_worker ? lane.max_running : usable_cores.load(std::memory_order_relaxed);
  return std::clamp(most, 1u, std::max(1u, workers_));
}

void Scheduler::finished(TakenBatch& batch, std::size_t tickets, LoopQueue* loop) noexcept {
  if (batch.from_queue) {
    bool wake = false;
    {
      const std::lock_guard lock(mutex_);
      // A worker that ran it between two slices of another batch does not look for more of it.
      wake = is_full(*batch.lane) && !batch.lane->queue.empty() && sleeping_workers_ > 0;
      --batch.lane->running;
      ready_.charge(*batch.lane, batch.spent - batch.estimate);
      --promised_.running;
      promised_.running_end_ns -= batch.ends_at;
      on_cores_ -= std::exchange(batch.on_core, false);
      batch.lane->cost.keep_pace(batch.estimate, clock_.now() - batch.taken_at);
      batch.lane->plan_batches();
    }
    if (wake) work_.notify_one();
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

// Counts ended tickets first: if both counts are equal, none was outstanding at that moment.
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

std::vector<TakenBatch> Scheduler::stop() {
  std::vector<TakenBatch> left;
  const std::lock_guard lock(mutex_);
  draining_ = true;
  stopped_ = true;
  for (LoopQueue* const loop : loops_) loop->drop_all(left);
  while (Lane* const lane = ready_.any()) {
    TakenBatch& batch = left.emplace_back();
    while (!lane->queue.empty()) {
      batch.dropped.push_back({lane->queue.pop(lane->queue.next()), Status::shutting_down});
    }
    recount(*lane);
    batch.lane = std::move(lane->self);
    ready_.update(*lane);
  }
  work_.notify_all();
  return left;
}

}  // namespace fused_mlp
