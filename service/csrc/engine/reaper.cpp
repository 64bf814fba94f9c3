// SPDX-License-Identifier: Apache-2.0
#include "engine/reaper.hpp"

#include <pthread.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/run/background.hpp"
#include "engine/run/busy_threads.hpp"
#include "engine/schedule/lane.hpp"

namespace fused_mlp {
namespace {

struct Reaper {
  std::mutex mutex;
  std::condition_variable changed;
  Lane* lanes = nullptr;  // linked by next_freed: handing over allocates nothing
  bool started = false;

  [[noreturn]] void run() {
    pthread_setname_np(pthread_self(), "mlp-reaper");
    step_back();
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return lanes != nullptr; });
      Lane* lane = std::exchange(lanes, nullptr);
      lock.unlock();
      while (lane != nullptr) delete std::exchange(lane, lane->next_freed);
      lock.lock();
    }
  }
};

// Never freed: a thread may outlive every static object.
Reaper& reaper() {
  static auto* instance = new Reaper;
  return *instance;
}

bool hand_over(Lane* lane) noexcept {
  try {
    Reaper& all = reaper();
    const std::lock_guard lock(all.mutex);
    if (!all.started) std::thread([&all] { all.run(); }).detach();
    all.started = true;
    lane->next_freed = std::exchange(all.lanes, lane);
    all.changed.notify_one();
    return true;
  } catch (const std::exception&) {  // no thread to be had
    return false;
  }
}

}  // namespace

void FreeLane::operator()(Lane* lane) const noexcept {
  if (!this_thread_is_loop || !hand_over(lane)) delete lane;
}

}  // namespace fused_mlp
