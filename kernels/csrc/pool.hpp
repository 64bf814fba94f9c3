// A small pool of helper threads for one job at a time. Whoever brings a job works on it too; helpers join
// while it lasts, and nobody ever waits for a helper that has not started. Knows nothing of kernels.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

namespace fused_mlp {

class Pool {
 public:
  static constexpr unsigned kMostThreads = 1024;  // far below what the door can count

  // A job hands out its own work, so that any number of participants, one included, finishes it.
  // `participant` is 0 for the caller and 1..helpers for the others.
  using Task = void (*)(void* job, unsigned participant);

  Pool() = default;
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Runs task(job, 0) here, and task(job, n) on up to `helpers` others that are free in time. Returns when
  // all participants are done. When the pool is busy with another caller's job, this thread works alone.
  void run(unsigned helpers, Task task, void* job);

  // A caller for as long as it computes, alone or with helpers. Each has a core to itself as long as helpers
  // are only invited to the cores that callers leave over.
  class CallerScope {
   public:
    explicit CallerScope(Pool& pool) noexcept
        : pool_(pool), others_(pool.callers_.fetch_add(1, std::memory_order_relaxed)) {}
    ~CallerScope() { pool_.callers_.fetch_sub(1, std::memory_order_relaxed); }
    CallerScope(const CallerScope&) = delete;
    CallerScope& operator=(const CallerScope&) = delete;
    // Of `threads`, those that neither another caller nor one of `busy` other threads needs; at least this
    // one, and no other where helpers would come too late.
    unsigned free_threads(unsigned threads, unsigned busy) const noexcept {
      const unsigned others = busy > others_ ? busy : others_;
      if (others > 0) {
        if (!pool_.crowded_.load(std::memory_order_relaxed))
          pool_.crowded_.store(true, std::memory_order_relaxed);
      } else if (pool_.left_alone()) {
        return 1;
      }
      return threads > others ? threads - others : 1;
    }

   private:
    Pool& pool_;
    unsigned others_;  // callers, when this one began
  };

  // The pool of this process. Never destroyed: its threads sleep until exit. A forked child gets a new one.
  static Pool& shared();

 private:
  struct Helper {
    std::atomic<int> cpu{-1};  // where it was when it last waited
    std::thread thread;
  };

  static std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
  bool left_alone() const noexcept {
    const std::int64_t until = alone_until_.load(std::memory_order_relaxed);
    return until != kNever && now() < until;
  }
  void note_turnout(bool came);
  void grow(unsigned helpers);
  void serve(Helper& self);
  void part_from_caller();
  bool enter(unsigned* participant);
  void leave();

  static constexpr unsigned kInVain = 8;  // invitations in a row that nobody took up in time, and then
  static constexpr std::int64_t kAlone = 20'000'000;  // none for so many nanoseconds
  static constexpr std::int64_t kNever = 0;
  static constexpr std::uint32_t kClosed = 1u << 31;
  static constexpr std::uint32_t kPlace = 1u << 16;
  static constexpr std::uint32_t kInside = 0xFFFF;

  std::mutex owner_;                    // held by the caller whose job runs
  std::atomic<std::uint32_t> call_{0};  // changes when there is a new job, or when the pool ends
  std::atomic<bool> ending_{false};
  // The door of the running job: bit 31 closed, bits 16..30 places left, bits 0..15 helpers inside.
  std::atomic<std::uint32_t> door_{kClosed};
  // Written while the door is closed and nobody is inside, read by those who entered.
  Task task_ = nullptr;
  void* job_ = nullptr;
  unsigned invited_ = 0;
  std::atomic<unsigned> callers_{0};
  std::atomic<bool> crowded_{false};  // others have been at work since the last invitation in vain
  std::atomic<std::int64_t> alone_until_{kNever};
  // Touched by the owner only; a helper knows its own.
  std::deque<Helper> helpers_;
  unsigned in_vain_ = 0;
};

}  // namespace fused_mlp
