// SPDX-License-Identifier: Apache-2.0
#include "engine/reaper.hpp"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/run/background.hpp"
#include "engine/run/busy_threads.hpp"

namespace fused_mlp {
namespace {

constexpr std::chrono::seconds kMaxReaping{2};

struct Reaper {
  std::mutex mutex;
  std::condition_variable changed;
  Reaped* first = nullptr;  // linked by next_freed: handing over allocates nothing
  bool started = false, busy = false;

  [[noreturn]] void run() {
    pthread_setname_np(pthread_self(), "mlp-reaper");
    step_back();
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return first != nullptr; });
      Reaped* object = std::exchange(first, nullptr);
      busy = true;
      lock.unlock();
      while (object != nullptr) delete std::exchange(object, object->next_freed);
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
};

// Never freed: a thread may outlive every static object.
Reaper& reaper() {
  static auto* instance = new Reaper;
  return *instance;
}

bool hand_over(Reaped* object) noexcept {
  try {
    Reaper& all = reaper();
    const std::lock_guard lock(all.mutex);
    if (!all.started) std::thread([&all] { all.run(); }).detach();
    all.started = true;
    object->next_freed = std::exchange(all.first, object);
    all.changed.notify_all();
    return true;
  } catch (const std::exception&) {  // no thread to be had
    return false;
  }
}

}  // namespace

void FreeLater::operator()(Reaped* object) const noexcept {
  if (!this_thread_is_loop || !hand_over(object)) delete object;
}

void wait_for_reaper() {
  Reaper& all = reaper();
  std::unique_lock lock(all.mutex);
  all.changed.wait_for(lock, kMaxReaping, [&all] { return all.first == nullptr && !all.busy; });
}

}  // namespace fused_mlp
