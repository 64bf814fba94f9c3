// SPDX-License-Identifier: Apache-2.0
// Test doubles: tickets that record their result, kernels that run when the test releases them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.hpp"

namespace fused_mlp::test {

// A manual clock that counts the threads waiting on it. A counted thread holds the engine's mutex until it
// sleeps, so a submit after wait_asleep() finds it asleep.
class WatchedClock final : public ManualClock {
 public:
  void wait_until(std::condition_variable& cv, std::unique_lock<std::mutex>& lock, Nanos deadline) override {
    change(+1, deadline);
    ManualClock::wait_until(cv, lock, deadline);
    change(-1, -1);
  }
  void wait_asleep(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return asleep_ == count; });
  }
  // Waits until the thread that fell asleep last waits for that deadline.
  void wait_deadline(Nanos deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return deadline_ == deadline; });
  }
  int sleeps() {
    const std::lock_guard lock(mutex_);
    return sleeps_;
  }

 private:
  void change(int by, Nanos deadline) {
    const std::lock_guard lock(mutex_);
    asleep_ += by;
    sleeps_ += by > 0;
    deadline_ = deadline;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  int asleep_ = 0;
  int sleeps_ = 0;
  Nanos deadline_ = -1;
};

// Counts flushes and completions, and lets a test wait for completions on other threads.
class Inbox : public CompletionSink {
 public:
  void flush() noexcept override { flushes.fetch_add(1); }
  void arrived() noexcept {
    const std::lock_guard lock(mutex_);
    ++completions_;
    changed_.notify_all();
  }
  void wait_for(int completions) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return completions_ >= completions; });
  }
  int completions() {
    const std::lock_guard lock(mutex_);
    return completions_;
  }
  std::atomic<int> flushes{0};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int completions_ = 0;
};

// A ticket whose row r holds `width` copies of value + r. Read its public members after its completion.
class Probe final : public Ticket {
 public:
  Probe(std::uint32_t rows, std::size_t width, float value, Inbox* inbox = nullptr)
      : Ticket(rows, inbox), width_(width), value_(value), inbox_(inbox) {}

  std::atomic<int> completed{0};
  std::atomic<int> gathered{0};
  Outcome outcome;  // without y
  std::vector<float> y;
  std::string detail;
  std::string strategy;
  std::size_t out_width = 1;

 protected:
  void gather(float* dst) noexcept override {
    ++gathered;
    for (std::uint32_t row = 0; row < rows(); ++row) {
      for (std::size_t i = 0; i < width_; ++i) *dst++ = value_ + static_cast<float>(row);
    }
  }
  void complete(const Outcome& o) noexcept override {
    outcome = o;
    outcome.y = nullptr;
    detail = o.detail;
    strategy = o.strategy;
    if (o.y) y.assign(o.y, o.y + o.rows * out_width);
    ++completed;
    if (inbox_) inbox_->arrived();
  }

 private:
  std::size_t width_;
  float value_;
  Inbox* inbox_;
};

// Records the calls of a puppet kernel and can hold them back. Outlives the kernel.
struct Stage {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::size_t> batches;  // rows of each call, in order
  int running = 0;
  int max_at_once = 0;
  bool held = false;       // calls block until release()
  bool fail_next = false;  // the next call fails
  std::thread::id freed_by;
  std::atomic<bool> freed{false};
  std::function<void()> during;  // called while running, without the mutex

  void hold() {
    const std::lock_guard lock(mutex);
    held = true;
  }
  void release() {
    const std::lock_guard lock(mutex);
    held = false;
    changed.notify_all();
  }
  bool is_running() {
    const std::lock_guard lock(mutex);
    return running > 0;
  }
  void wait_running(int count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return running >= count; });
  }
};

// y = 2 * the first column of x.
class PuppetKernel final : public Kernel {
 public:
  PuppetKernel(std::shared_ptr<Stage> stage, std::size_t in_features, bool python = false)
      : stage_(std::move(stage)), in_features_(in_features), python_(python) {}
  ~PuppetKernel() override {
    stage_->freed_by = std::this_thread::get_id();
    stage_->freed = true;
    stage_->freed.notify_all();
  }
  bool needs_worker() const noexcept override { return python_; }
  void run(const BatchBuffer& x, std::size_t first, std::size_t rows, const BatchBuffer& y,
           KernelResult& result) noexcept override {
    {
      std::unique_lock lock(stage_->mutex);
      stage_->batches.push_back(rows);
      ++stage_->running;
      stage_->max_at_once = std::max(stage_->max_at_once, stage_->running);
      stage_->changed.notify_all();
      stage_->changed.wait(lock, [&] { return !stage_->held; });
      --stage_->running;
      if (std::exchange(stage_->fail_next, false)) {
        result.failed = true;
        result.error = "told to fail";
        return;
      }
    }
    if (stage_->during) stage_->during();
    for (std::size_t row = first; row < first + rows; ++row) {
      y.data().get()[row] = 2 * x.data().get()[row * in_features_];
    }
    result.strategy = "puppet";
  }

 private:
  std::shared_ptr<Stage> stage_;
  std::size_t in_features_;
  bool python_;
};

inline constexpr Nanos kMicro = 1000;
inline constexpr Nanos kMilli = 1'000'000;

// A lane whose batches are estimated at so many microseconds.
inline LaneOptions costing(double fixed_us, double row_us, std::uint32_t max_batch_rows = 64) {
  LaneOptions options;
  options.cost = {fixed_us * 1e3, row_us * 1e3};
  options.max_batch_rows = max_batch_rows;
  return options;
}

// An engine with puppet lanes on a manual clock. Without workers, batches run on the test's thread, when it
// calls run_all().
struct Rig {
  static constexpr std::size_t kWidth = 3;

  explicit Rig(unsigned workers = 0) : engine(options(workers)), runner(engine) {}

  std::shared_ptr<Lane> add_lane(LaneOptions lane_options = {}, bool python = false) {
    lane_options.in_features = kWidth;
    lane_options.out_features = 1;
    stages.push_back(std::make_shared<Stage>());
    return engine.add_lane(lane_options, std::make_unique<PuppetKernel>(stages.back(), kWidth, python));
  }
  Ref<Probe> ticket(float value, std::uint32_t rows = 1, Inbox* into = nullptr) {
    return make_ref<Probe>(rows, kWidth, value, into ? into : &inbox);
  }
  Ref<Probe> of_flow(std::uint64_t flow, std::uint32_t rows) {
    auto probe = ticket(static_cast<float>(flow), rows);
    probe->flow = flow;
    return probe;
  }
  Status submit(Lane& lane, const Ref<Probe>& probe) {
    return engine.submit(lane, Ref<Ticket>(Ref<Probe>(probe)));
  }
  // As an event loop that will run it.
  Status submit_here(Lane& lane, const Ref<Probe>& probe) {
    Submission one{&lane, Ref<Ticket>(Ref<Probe>(probe))};
    runner.submit({&one, 1});
    return one.status;
  }
  // Submits a new ticket that must be accepted.
  Ref<Probe> send(Lane& lane, float value, std::uint32_t rows = 1);
  int run_all() {
    int batches = 0;
    while (runner.run_ready()) ++batches;
    return batches;
  }

  std::shared_ptr<WatchedClock> clock = std::make_shared<WatchedClock>();
  Inbox inbox;
  std::vector<std::shared_ptr<Stage>> stages;
  std::mutex errors_mutex;
  std::vector<std::string> errors;
  bool no_memory_for_errors = false;  // as if telling of an error took more than there is
  std::vector<Dispute> disputes;      // guarded by errors_mutex
  Engine engine;
  InlineRunner runner;

 private:
  EngineOptions options(unsigned workers) {
    EngineOptions result;
    result.workers = workers;
    result.clock = clock;
    result.on_kernel_error = [this](const Lane&, std::string_view text) {
      const std::lock_guard lock(errors_mutex);
      if (no_memory_for_errors) throw std::bad_alloc();
      errors.emplace_back(text);
    };
    result.on_dispute = [this](const std::shared_ptr<Shadow>&, const Dispute& dispute) {
      const std::lock_guard lock(errors_mutex);
      disputes.push_back(dispute);
    };
    return result;
  }
};

}  // namespace fused_mlp::test
