// SPDX-License-Identifier: Apache-2.0
// A stream has come to a point: told by a thread of the driver's, awaited by one that sleeps.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace fused_mlp::cuda {

class Arrival {
 public:
  void expect() {
    const std::lock_guard lock(mutex_);
    told_ = false;
  }
  bool wait_for(std::chrono::nanoseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [&] { return told_; });
  }
  // As cuLaunchHostFunc wants it.
  static void tell(void* arrival) {
    auto& self = *static_cast<Arrival*>(arrival);
    const std::lock_guard lock(self.mutex_);  // until it was notified: the other thread may destroy it then
    self.told_ = true;
    self.changed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool told_ = false;
};

}  // namespace fused_mlp::cuda
