// How many threads of this process are at work on requests. A kernel spreads over the cores they leave over:
// an idle server answers one request with all of them, a busy one does not make its threads take turns.
#pragma once

#include <atomic>
#include <limits>

namespace fused_mlp {

inline std::atomic<unsigned> threads_at_work{0};
inline thread_local bool this_thread_at_work = false;
inline thread_local bool this_thread_gives_way = false;  // leaves every other core to those

// Those besides this one.
inline unsigned others_at_work() noexcept {
  if (this_thread_gives_way) return std::numeric_limits<unsigned>::max();
  return threads_at_work.load(std::memory_order_relaxed) - (this_thread_at_work ? 1 : 0);
}

// For as long as it lives, this thread is counted.
class AtWork {
 public:
  AtWork() noexcept {
    this_thread_at_work = true;
    threads_at_work.fetch_add(1, std::memory_order_relaxed);
  }
  ~AtWork() {
    threads_at_work.fetch_sub(1, std::memory_order_relaxed);
    this_thread_at_work = false;
  }
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;
};

}  // namespace fused_mlp
