// A small pool of helper threads for one job at a time. Whoever brings a job works on it too; helpers join
// while it lasts, and nobody ever waits for a helper that has not started. Knows nothing of kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace fused_mlp {

class Pool {
 public:
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

  // The pool of this process. Never destroyed: its threads sleep until exit. A forked child gets a new one.
  static Pool& shared();

 private:
  void grow(unsigned helpers);
  void serve();
  bool enter(unsigned* participant);
  void leave();

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
  std::vector<std::thread> threads_;  // touched by the owner only
};

}  // namespace fused_mlp
