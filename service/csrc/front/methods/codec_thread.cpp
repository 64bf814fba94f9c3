// SPDX-License-Identifier: Apache-2.0
#include "front/methods/codec_thread.hpp"

#include <pthread.h>

#include "engine/background.hpp"
#include "front/methods/prediction.hpp"

namespace fused_mlp::front {

CodecThread::~CodecThread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void CodecThread::push(uint64_t address, uint64_t connection, Prediction& prediction) {
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "mlp-codec");
  }
  {
    const std::lock_guard lock(mutex_);
    waiting_.push(address, connection, &prediction);
  }
  changed_.notify_one();
}

void CodecThread::run() {
  step_back();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    Prediction* const prediction = waiting_.take(1).front();
    lock.unlock();
    prediction->work_elsewhere();
    lock.lock();
  }
}

}  // namespace fused_mlp::front
