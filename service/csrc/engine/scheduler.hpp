// Chooses the next lane and forms a batch of its tickets; docs/scheduling.md has the rules. Owns the engine's
// only mutex, which is taken once for each round of requests and once for each batch: critical sections just
// link and unlink tickets. Never completes a ticket, destroys a lane or calls foreign code with the mutex
// held.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/engine.hpp"

namespace fused_mlp {

// A batch that one thread took to run. Reused, so that its vectors keep their capacity.
struct TakenBatch {
  struct Dropped {
    Ref<Ticket> ticket;
    Status status;
  };
  std::shared_ptr<Lane> lane;
  std::vector<Ref<Ticket>> runnable;
  std::vector<Dropped> dropped;  // cancelled or expired: completed without running
  std::uint32_t rows = 0;        // of `runnable`
  Nanos taken_at = 0;
  Nanos charged = 0;  // to its lane when it was taken: the estimate
  Release release = Release::idle;

  std::size_t tickets() const noexcept { return runnable.size() + dropped.size(); }
};

class Scheduler {
 public:
  // An event loop runs nothing that is estimated to take longer.
  static constexpr Nanos kLoopBudget = 100'000;
  // What an event loop submitted is left to it for so long, unless it is more than it can run at once.
  static constexpr Nanos kAged = 1'000'000;
  // Lanes whose virtual times are no further apart have had the same share.
  static constexpr Nanos kSameShare = 1'000'000;

  Scheduler(Clock& clock, unsigned workers);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  void add(std::shared_ptr<Lane> lane);
  void remove(const std::shared_ptr<Lane>& lane);

  // `loop`: the event loop that will run what it can of them; null: they are for workers.
  void submit(std::span<Submission> list, const void* loop);

  // For workers: blocks until a batch is ready. False once stopped.
  bool wait_take(TakenBatch& batch);
  // For event loops: takes a ready batch that needs no Python and fits the budget. False if there is none.
  bool try_take(TakenBatch& batch, const void* loop);
  // For a worker in the middle of `running`, of which `left` rows are to be run: takes a batch that takes
  // less time than those and should go first. False if there is none.
  bool take_between(const TakenBatch& running, std::uint64_t left, TakenBatch& batch);
  // Call it when the tickets of a batch are complete, flushed and released.
  void finished(std::size_t tickets) noexcept;

  void begin_drain();
  bool wait_idle(std::chrono::nanoseconds timeout);
  void wait_idle();
  std::uint64_t outstanding() const noexcept { return outstanding_.load(); }
  // Ends all taking. Returns the queued tickets as dropped, one batch per lane.
  std::vector<TakenBatch> stop();

 private:
  static bool is_owed_a_place(const Lane& lane, const Ticket& ticket) noexcept;
  Status admit(Lane& lane, const Ticket& ticket) const noexcept;
  bool link(Lane& lane, Ref<Ticket>&& ticket, const void* loop);
  bool is_due(const Lane& lane, Nanos now) const noexcept;
  bool fits_loop(const Lane& lane) const noexcept;
  Nanos loops_until(const Lane& lane, Nanos now) const noexcept;
  bool is_for_worker(const Lane& lane, Nanos now) const noexcept;
  bool is_left_to_loop(const Lane& lane, const void* loop, Nanos now) const noexcept;
  Nanos worker_takes_at(const Lane& lane) const noexcept;
  template <class Allowed>
  std::size_t choose(Allowed allowed) const noexcept;
  std::uint64_t share_rows(const Lane& lane) const noexcept;
  struct Limits;
  void take(std::size_t index, Nanos now, const Limits& limits, TakenBatch& batch) noexcept;
  static bool is_too_late(Lane& lane, const Ticket& ticket, Nanos now) noexcept;
  bool wants_worker(Nanos now) const noexcept;
  void wake_workers();

  Clock& clock_;
  const unsigned workers_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable idle_;
  std::vector<std::shared_ptr<Lane>> lanes_;
  std::vector<std::shared_ptr<Lane>> ready_;  // lanes with queued tickets
  std::atomic<std::size_t> ready_count_{0};   // of ready_, for a look without the mutex
  Nanos virtual_now_ = 0;                     // virtual time of the lane that was served last
  std::uint64_t turns_ = 0;                   // batches taken
  unsigned sleeping_workers_ = 0;             // workers waiting on work_
  bool stopped_ = false;
  bool draining_ = false;
  std::atomic<std::uint64_t> outstanding_{0};
  std::atomic<unsigned> idle_waiters_{0};
};

}  // namespace fused_mlp
