// The shadow: some batches are run again on the other variant, after their answers, and the outputs compared.
// Nothing here ever answers a caller. A live thread that has run a chosen batch hands its buffers over and
// takes empty ones in exchange: no copy, no wait. One thread of the lowest priority does the rest, and is at
// work for no larger a part of the time than the largest share of batches that it was told to compare.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/clock.hpp"
#include "engine/difference.hpp"
#include "engine/histogram.hpp"
#include "engine/kernel.hpp"
#include "engine/share.hpp"

namespace fused_mlp {

class Lane;
class Scheduler;

// Counted by the shadow's thread (and `skipped` also by live ones), read at scrape time.
struct ShadowMetrics {
  std::atomic<std::uint64_t> compared{0};    // batches
  std::atomic<std::uint64_t> skipped{0};     // chosen, but there was live work, or no time left
  std::atomic<std::uint64_t> failed{0};      // a kernel failed in the shadow
  std::atomic<std::uint64_t> rows{0};        // compared
  std::atomic<std::uint64_t> mismatches{0};  // compared batches with a difference over the tolerance
  DurationHistogram fused;                   // each variant on the very same rows, one after the other
  DurationHistogram unfused;
  std::atomic<double> max_absolute{0};  // since load
  std::atomic<double> max_relative{0};
};

// How the shadow times the kernels that it runs.
enum class ShadowTime : std::uint8_t {
  cpu,      // of its thread: what others make it wait for a core is no kernel's doing
  elapsed,  // for kernels that run elsewhere, as on a GPU
};

// Both lanes of one model version, and how much of their traffic is compared.
class Shadow {
 public:
  // Made by Engine::add_shadow.
  Shadow(std::string name, const std::shared_ptr<Lane>& fused, const std::shared_ptr<Lane>& unfused,
         ShadowTime time)
      : name_(std::move(name)), fused_(fused), unfused_(unfused), time_(time) {}

  const std::string& name() const noexcept { return name_; }  // "digits/1"
  const ShadowMetrics& metrics() const noexcept { return metrics_; }
  double share() const noexcept { return share_.load().fraction(); }
  double tolerance() const noexcept { return tolerance_.load(std::memory_order_relaxed); }
  // Let the next mismatch be reported: only the first one is, until this is called again.
  void arm() noexcept { armed_.store(true, std::memory_order_relaxed); }

  // Once per batch, on a live thread: whether this one is to be run again.
  bool chooses() noexcept {
    const Share share = share_.load();
    return !share.none() && sampler_.sample(share);
  }

 private:
  friend class Engine;
  friend class ShadowWorker;

  const std::string name_;
  const std::weak_ptr<Lane> fused_;  // weak: the lanes hold this
  const std::weak_ptr<Lane> unfused_;
  const ShadowTime time_;
  AtomicShare share_;
  std::atomic<double> tolerance_{1e-3};  // of the relative difference
  std::atomic<bool> armed_{true};
  std::atomic<bool> waiting_{false};  // a batch of this one has a place; it takes no second one
  ShareSampler sampler_;
  OutputScale scale_;  // the shadow's thread only
  ShadowMetrics metrics_;
};

struct ShadowHooks {
  // The first mismatch since the shadow was armed, on the shadow's thread.
  std::function<void(const std::shared_ptr<Shadow>&, const Difference&)> on_mismatch;
  std::function<void(const Lane&, std::string_view)> on_error;
};

class ShadowWorker {
 public:
  static constexpr std::size_t kPlaces = 16;      // for batches of as many shadows
  static constexpr Nanos kLook = 1'000'000;       // how often it looks for a moment without live work
  static constexpr Nanos kPatience = 50'000'000;  // how long a batch waits for one before it is skipped

  ShadowWorker(Clock& clock, const Scheduler& live, ShadowHooks hooks);
  ~ShadowWorker();
  ShadowWorker(const ShadowWorker&) = delete;
  ShadowWorker& operator=(const ShadowWorker&) = delete;

  // From a live thread, after its batch was answered. Never waits: what cannot be taken at once is skipped.
  void offer(const std::shared_ptr<Lane>& lane, std::size_t rows, BatchBuffer& x, BatchBuffer& y) noexcept;
  // The thread's body: returns after stop().
  void work();
  void stop();
  // To be compared from now on.
  void add(const std::shared_ptr<Shadow>& shadow);
  // A share has changed: what it rests for is not owed any more.
  void end_rest();

 private:
  struct Job {
    std::shared_ptr<Shadow> shadow;  // not the lanes: a job may wait for long, and they may be unloaded
    bool fused_answered = false;
    std::size_t rows = 0;
    BatchBuffer x;
    BatchBuffer y;  // what was answered
  };
  // Taken and given back by atomic changes of state: a live thread never waits for this one, which may be
  // asleep in the middle of anything.
  struct Slot {
    enum State : int { free, filling, full };
    std::atomic<int> state{free};
    Job job;
  };

  Slot* wait_for_offer();
  bool wait_for_quiet();
  void rest(Nanos worked);
  double largest_share();
  void compare(Job& job) noexcept;
  bool run(const Lane& lane, const Job& job, const BatchBuffer& y, Nanos& took) noexcept;

  Clock& clock_;
  const Scheduler& live_;
  const ShadowHooks hooks_;
  std::array<Slot, kPlaces> slots_;
  std::atomic<std::uint32_t> offers_{
      0};  // changes with every offer, and at the end: what an idle worker waits on
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;  // for waiting by the clock; live threads never take it
  std::condition_variable changed_;
  Nanos rests_until_ = 0;                       // guarded by mutex_, as are the next
  std::vector<std::weak_ptr<Shadow>> shadows_;  // all there are

  // The shadow's thread only.
  std::size_t turn_ = 0;  // where it looks first, so that every shadow has its turn
  BatchBuffer fused_y_;
  BatchBuffer unfused_y_;
  bool fused_first_ = false;  // in turn, so that neither always finds the rows in the cache
};

}  // namespace fused_mlp
