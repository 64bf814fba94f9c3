// SPDX-License-Identifier: Apache-2.0
// Decides which thread runs which batch, and when; docs/internals/scheduling.md has the rules,
// architecture.md the locks. Submitting and the end are in scheduler.cpp, the choice of a batch is in
// scheduler_taking.cpp. A loop has the requests that it keeps in its LoopQueue. All others are in the queues
// of the lanes, which this mutex guards: it is taken once for each round of requests that a loop does not
// keep, and twice for each batch from there, three times if a device computes it. Critical sections just link
// and unlink tickets: they complete no ticket, destroy no lane, call no foreign code and wake no thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/engine.hpp"
#include "engine/run/taken_batch.hpp"
#include "engine/schedule/admission.hpp"
#include "engine/schedule/loop_queue.hpp"
#include "engine/schedule/ready_lanes.hpp"

namespace fused_mlp {

class Scheduler {
 public:
  // An event loop runs nothing that is estimated to take longer.
  static constexpr Nanos kLoopBudget = LoopQueue::kLongest;

  Scheduler(Clock& clock, unsigned workers);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  void add(Lane& lane);
  void remove(const std::shared_ptr<Lane>& lane);
  void open(LoopQueue& loop);
  // Returns what it still had, as dropped.
  std::vector<TakenBatch> close(LoopQueue& loop);

  // `loop`: of the event loop that calls, which will run what it can of them; null: they are for workers.
  void submit(std::span<Submission> list, LoopQueue* loop);

  enum class Wait { taken, idle, stopped };
  // For workers: blocks until a batch is ready, or until `idle_at` (0: never).
  Wait wait_take(TakenBatch& batch, Nanos idle_at);
  // For a worker whose batch a device computes: takes the next one, if the one that is due can be started on
  // a device as well. Never waits.
  bool take_beside(TakenBatch& batch);
  // For event loops: takes a ready batch that needs no Python and fits the budget. False if there is none.
  bool try_take(TakenBatch& batch, LoopQueue& loop);
  // For a worker in the middle of `running`, of which `left` rows are to be run: takes a batch that takes
  // less time than those and should go first. False if there is none.
  bool take_between(const TakenBatch& running, std::uint64_t left, TakenBatch& batch);
  // Call it when the tickets of a batch are complete, flushed and released. `loop` as for submit.
  void finished(TakenBatch& batch, std::size_t tickets, LoopQueue* loop) noexcept;

  void begin_drain();
  bool wait_idle(std::chrono::nanoseconds timeout);
  void wait_idle() {
    while (!wait_idle(std::chrono::hours(1))) {
    }
  }
  // Tickets accepted and not yet complete.
  std::uint64_t outstanding() const;
  // Ends all taking. Returns the queued tickets as dropped.
  std::vector<TakenBatch> stop();

 private:
  struct Limits;
  unsigned link_all(std::span<Submission> list, bool by_loop);
  bool link(Lane& lane, Ref<Ticket>&& ticket, bool by_loop);
  void call_worker(Lane& lane) noexcept;
  void recount(Lane& lane) noexcept;
  unsigned cores_for(const Lane& lane) const noexcept;
  bool fits_loop(const Lane& lane) const noexcept;
  bool is_full(const Lane& lane) const noexcept;
  Nanos worker_takes_at(const Lane& lane) const noexcept;
  std::uint64_t share_rows(const Lane& lane) const noexcept;
  Lane* due_for_worker(Nanos now, Nanos& next_look);
  bool take_due(Lane& lane, Nanos now, TakenBatch& batch);
  void take(Lane& lane, Nanos now, const Limits& limits, TakenBatch& batch) noexcept;
  bool take_short(TakenBatch& batch);
  std::uint64_t count_outstanding() const noexcept;
  void wake_all();

  Clock& clock_;
  const unsigned workers_;
  mutable std::mutex mutex_;  // guards what follows, and the queues of the lanes
  std::condition_variable work_;
  std::condition_variable idle_;
  ReadyLanes ready_;
  Promised promised_;
  unsigned on_cores_ = 0;  // workers that run a native batch: not more than there are cores
  std::vector<LoopQueue*> loops_;
  std::unordered_map<std::string, std::weak_ptr<TimeAccount>> accounts_;  // by model
  std::size_t accounts_swept_ = 0;      // how many there were when those of models that are gone were removed
  unsigned sleeping_workers_ = 0;       // waiting on work_
  std::size_t lanes_with_workers_ = 0;  // that have queued tickets for which a worker was called
  bool stopped_ = false;
  bool draining_ = false;
  // Tickets of no loop, and of loops that are gone.
  std::atomic<std::uint64_t> accepted_{0}, ended_{0};
  std::atomic<unsigned> idle_waiters_{0};
};

}  // namespace fused_mlp
