// SPDX-License-Identifier: Apache-2.0
// Compares the variants of a model on live batches: runs sampled batches again on the other variant, after
// their responses, and compares the outputs. A thread that has run a sampled batch swaps its buffers for
// empty ones, or copies the rows if they are not its own: no wait. One low-priority thread does the rest, and
// works for at most the largest configured share of the time. Never affects a response.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "engine/clock.hpp"
#include "engine/run/kernel.hpp"
#include "engine/shadow/shadow.hpp"

namespace fused_mlp {

class Scheduler;

struct ShadowHooks {
  // Called for every batch with disputed rows, on the shadow's thread.
  std::function<void(const std::shared_ptr<Shadow>&, const Dispute&)> on_dispute;
  std::function<void(const Lane&, std::string_view)> on_error;
};

class ShadowWorker {
 public:
  static constexpr std::size_t kSlots = 16;  // batches that may wait; at most one per shadow
  static constexpr Nanos kPoll = 1'000'000;  // how often it checks whether the engine is idle
  static constexpr Nanos kMaxWait =
      50'000'000;  // a batch that waited this long for an idle engine is skipped

  ShadowWorker(Clock& clock, const Scheduler& scheduler, ShadowHooks hooks);
  ~ShadowWorker();
  ShadowWorker(const ShadowWorker&) = delete;
  ShadowWorker& operator=(const ShadowWorker&) = delete;

  class Offer;
  // The thread's main function; returns after stop().
  void work();
  void stop();
  void add(const std::shared_ptr<Shadow>& shadow);
  // The share changed: cancel the back-off.
  void cancel_backoff();

 private:
  struct Job {
    std::shared_ptr<Shadow> shadow;  // not the lanes: those may be unloaded while the job waits
    std::uint32_t epoch = 0;         // when it was answered
    bool first_answered = false;
    std::size_t rows = 0;
    BatchBuffer x;
    BatchBuffer y;  // the outputs that were sent
  };
  // Atomic state instead of a mutex: the shadow's thread may be descheduled at any point, and a thread that
  // answers requests must not wait for it.
  struct Slot {
    enum State : int { free, filling, full };
    std::atomic<int> state{free};
    Job job;
  };

  Slot* claim_slot(Shadow& shadow) noexcept;
  Slot* wait_for_offer();
  bool wait_for_idle_engine();
  void back_off(Nanos worked);
  double largest_share();
  void compare(Job& job) noexcept;
  void compare_versions(const Job& job, std::size_t out_features) noexcept;
  void report(const Job& job, const Lane& fused, const float* fused_y, const float* unfused_y,
              const Difference& difference);
  bool run(const Lane& lane, const Job& job, const BatchBuffer& y, Nanos& took);

  Clock& clock_;
  const Scheduler& scheduler_;
  const ShadowHooks hooks_;
  std::array<Slot, kSlots> slots_;
  std::atomic<std::uint32_t> offers_{0};  // changes with every offer and at stop(); the worker waits on it
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;  // for waits on the clock; threads that answer requests never take it
  std::condition_variable changed_;
  Nanos backoff_until_ = 0;                     // guarded by mutex_
  std::vector<std::weak_ptr<Shadow>> shadows_;  // guarded by mutex_

  // Used by the shadow's thread only.
  std::size_t next_slot_ = 0;  // where the search for a full slot begins: round-robin between shadows
  BatchBuffer fused_y_;
  BatchBuffer unfused_y_;
  bool fused_first_ = false;  // alternates: the second kernel finds the rows in the cache
};

// By a thread that has answered a sampled batch: a slot for its rows and results, if one is free. Never
// waits. What is not made, for want of a slot or of memory, counts as skipped.
class ShadowWorker::Offer {
 public:
  Offer(ShadowWorker& worker, Shadow& shadow) noexcept
      : worker_(worker), shadow_(shadow), slot_(worker.claim_slot(shadow)) {}
  ~Offer();
  Offer(const Offer&) = delete;
  Offer& operator=(const Offer&) = delete;
  explicit operator bool() const noexcept { return slot_ != nullptr; }
  BatchBuffer& x() noexcept { return slot_->job.x; }
  BatchBuffer& y() noexcept { return slot_->job.y; }
  void make(const std::shared_ptr<Lane>& lane, std::size_t rows) noexcept;

 private:
  ShadowWorker& worker_;
  Shadow& shadow_;
  Slot* slot_;  // null again once the offer is made
};

}  // namespace fused_mlp
