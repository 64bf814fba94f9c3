// Which lane is next, and which of its tickets make a batch. Owns the one mutex of the engine: critical
// sections link and unlink tickets and nothing else, so it is held for some tens of nanoseconds. Never
// completes a ticket, drops a lane or calls foreign code with the mutex held.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine.hpp"

namespace fused_mlp {

// What one thread takes away to run. Reused, so that its vectors keep their room.
struct TakenBatch {
  struct Dead {
    Ref<Ticket> ticket;
    Status status;
  };
  std::shared_ptr<Lane> lane;
  std::vector<Ref<Ticket>> live;
  std::vector<Dead> dead;  // cancelled or expired: to be completed, never run
  std::uint32_t rows = 0;  // of the live ones
  Nanos taken_at = 0;
  Release release = Release::idle;

  std::size_t tickets() const noexcept { return live.size() + dead.size(); }
};

class Scheduler {
 public:
  explicit Scheduler(Clock& clock);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  void add(std::shared_ptr<Lane> lane);
  void retire(const std::shared_ptr<Lane>& lane);

  Status submit(Lane& lane, Ref<Ticket>&& ticket, Wake wake);

  // For workers: blocks until there is a batch; false once stopped.
  bool wait_take(TakenBatch& batch);
  // For event loops: a batch that needs no Python, if one is ready.
  bool try_take(TakenBatch& batch);
  // The tickets of a batch are complete, flushed and released.
  void finished(std::size_t tickets) noexcept;

  void begin_drain();
  bool wait_idle(std::chrono::nanoseconds timeout);
  void wait_idle();
  std::uint64_t outstanding() const noexcept { return outstanding_.load(); }
  // Nothing is taken any more; everything queued comes back, as dead, one batch per lane.
  std::vector<TakenBatch> stop();

 private:
  bool ripe(const Lane& lane, Nanos now) const noexcept;
  std::size_t pick(Nanos now, bool python_too, Nanos& next_release) const noexcept;
  void take(std::size_t index, Nanos now, TakenBatch& batch);
  void wake_sleepers();

  Clock& clock_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable idle_;
  std::vector<std::shared_ptr<Lane>> lanes_;
  std::vector<std::shared_ptr<Lane>> ready_;  // lanes with queued tickets, served in turn
  std::size_t turn_ = 0;                      // index into ready_
  unsigned sleeping_ = 0;                     // workers waiting on work_
  bool stopped_ = false;
  std::atomic<bool> draining_{false};  // written under the mutex
  std::atomic<std::uint64_t> outstanding_{0};
  std::atomic<unsigned> idle_waiters_{0};
};

}  // namespace fused_mlp
