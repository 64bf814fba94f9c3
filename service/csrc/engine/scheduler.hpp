// Chooses the next lane and forms a batch of its tickets. Owns the engine's only mutex: critical sections
// just link and unlink tickets, which takes tens of nanoseconds. Never completes a ticket, destroys a lane or
// calls foreign code with the mutex held.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
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
  Release release = Release::idle;

  std::size_t tickets() const noexcept { return runnable.size() + dropped.size(); }
};

class Scheduler {
 public:
  explicit Scheduler(Clock& clock);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  void add(std::shared_ptr<Lane> lane);
  void remove(const std::shared_ptr<Lane>& lane);

  Status submit(Lane& lane, Ref<Ticket>&& ticket, Wake wake);

  // For workers: blocks until a batch is ready. False once stopped.
  bool wait_take(TakenBatch& batch);
  // For event loops: takes a ready batch that needs no Python. False if there is none.
  bool try_take(TakenBatch& batch);
  // Call it when the tickets of a batch are complete, flushed and released.
  void finished(std::size_t tickets) noexcept;

  void begin_drain();
  bool wait_idle(std::chrono::nanoseconds timeout);
  void wait_idle();
  std::uint64_t outstanding() const noexcept { return outstanding_.load(); }
  // Ends all taking. Returns the queued tickets as dropped, one batch per lane.
  std::vector<TakenBatch> stop();

 private:
  bool is_due(const Lane& lane, Nanos now) const noexcept;
  std::size_t pick_lane(Nanos now, bool with_python, Nanos& next_release) const noexcept;
  void take(std::size_t index, Nanos now, TakenBatch& batch) noexcept;
  void wake_workers();

  Clock& clock_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable idle_;
  std::vector<std::shared_ptr<Lane>> lanes_;
  std::vector<std::shared_ptr<Lane>> ready_;  // lanes with queued tickets, served round-robin
  std::size_t next_ready_ = 0;                // index into ready_: where the search for a due lane begins
  unsigned sleeping_workers_ = 0;             // workers waiting on work_
  bool stopped_ = false;
  bool draining_ = false;
  std::atomic<std::uint64_t> outstanding_{0};
  std::atomic<unsigned> idle_waiters_{0};
};

}  // namespace fused_mlp
