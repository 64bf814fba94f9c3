// SPDX-License-Identifier: Apache-2.0
#include "objects.hpp"

#include <chrono>
#include <random>

namespace fake_cuda {

Context::Context() = default;
Context::~Context() = default;

Stream::Stream(Context& context, Pace& pace, unsigned seed) : context_(context), pace_(pace), seed_(seed) {
  if (!pace.drops) thread_ = std::thread([this] { run(); });
}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Stream::enqueue(Work work) {
  if (captured_) {
    captured_->push_back(std::move(work));
    return;
  }
  if (pace_.drops) return;
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

bool Stream::idle() {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && !running_;
}

void Stream::wait_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !running_; });
}

std::optional<std::vector<Work>> Stream::end_capture() {
  std::optional<std::vector<Work>> work = std::move(captured_);
  captured_.reset();
  if (invalid_) work.reset();
  return work;
}

void Stream::run_one(const Work& work) {
  if (context_.sticky.load() != 0) return;
  if (const int code = work(); code != 0) context_.sticky.store(code);
}

void Stream::run() {
  std::mt19937 random(seed_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Work work = std::move(queue_.front());
    queue_.pop_front();
    running_ = true;
    lock.unlock();
    {
      std::unique_lock pace(pace_.mutex);
      pace_.changed.wait(pace, [&] { return !pace_.held; });
    }
    const unsigned most = pace_.delay_us.load();
    if (const unsigned us = most == 0 ? 0 : random() % (most + 1); us > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(us));  // a device takes its time
    }
    run_one(work);
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

}  // namespace fake_cuda
