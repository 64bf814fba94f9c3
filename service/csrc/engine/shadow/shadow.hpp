// SPDX-License-Identifier: Apache-2.0
// A shadow: two lanes, the share of their batches that is compared, and the results. Either the variants of
// one version, where a difference is a mistake, or arms of two versions, where it is what one wants to know.
// The first lane is fused, or of the arm that answers; the second is unfused, or of the arm that shadows it.
// The comparison itself is in shadow_worker.hpp.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "engine/route/share.hpp"
#include "engine/shadow/difference.hpp"
#include "engine/telemetry/histogram.hpp"

namespace fused_mlp {

struct Lane;

// The verdict of the referee on a batch whose outputs differ: which variant is further from float64 than
// rounding explains.
enum class Verdict : std::uint8_t {
  fused_wrong,
  unfused_wrong,
  both_wrong,
  unfused_not_finite,  // it overflowed, which its dtype explains, where fused did not
  within_bound,        // rounding explains both
  int8_cost,           // so it does, but that of int8 rows costs more than was allowed for
  not_judged,          // the referee was busy
};
inline constexpr std::array<const char*, 7> kVerdictNames = {
    "fused_wrong",  "unfused_wrong", "both_wrong", "unfused_not_finite",
    "within_bound", "int8_cost",     "not_judged"};

// Batches by verdict.
using VerdictCounters = std::array<std::atomic<std::uint64_t>, kVerdictNames.size()>;

// One more than the bounds: above all of them.
using DifferenceCounts = std::array<std::atomic<std::uint64_t>, kDifferenceBounds.size() + 1>;

// Written by the shadow's thread (`skipped` also by the threads that answer requests), read at scrape time.
struct ShadowMetrics {
  std::atomic<std::uint64_t> compared{0};  // batches
  std::atomic<std::uint64_t> skipped{0};   // sampled but not compared: the server was busy or in back-off
  std::atomic<std::uint64_t> failed{0};    // a kernel failed in the comparison
  std::atomic<std::uint64_t> rows{0};      // of the compared batches
  std::atomic<std::uint64_t> disputed{0};  // compared batches that were handed to the referee
  VerdictCounters verdicts{};
  DurationHistogram fused;  // both variants on the same rows, one after the other
  DurationHistogram unfused;
  DifferenceCounts differences{};              // rows by relative difference; between versions only
  std::atomic<double> difference_sum{0};       // of finite ones
  std::atomic<std::uint64_t> top1_changes{0};  // rows with another largest output; likewise
  std::atomic<double> max_absolute{0};
  std::atomic<double> max_relative{0};
};

enum class ShadowKind : std::uint8_t { variants, versions };

// How the shadow measures the duration of a kernel call.
enum class ShadowTime : std::uint8_t {
  cpu,      // CPU time of its thread: excludes waiting for a core
  elapsed,  // for kernels that run elsewhere, for example on a GPU
};

class Shadow : public std::enable_shared_from_this<Shadow> {
 public:
  // Created by Engine::add_shadow.
  Shadow(std::string name, const std::shared_ptr<Lane>& first, const std::shared_ptr<Lane>& second,
         ShadowTime time, ShadowKind kind = ShadowKind::variants,
         std::shared_ptr<ShadowMetrics> metrics = nullptr)
      : name_(std::move(name)),
        first_(first),
        second_(second),
        time_(time),
        kind_(kind),
        metrics_(metrics ? std::move(metrics) : std::make_shared<ShadowMetrics>()) {}

  const std::string& name() const noexcept { return name_; }  // "digits/1"
  const ShadowMetrics& metrics() const noexcept { return *metrics_; }
  double share() const noexcept { return share_.load().fraction(); }
  double tolerance() const noexcept { return tolerance_.load(std::memory_order_relaxed); }
  // Counts a verdict. True for the first of its kind since restart(): that one is worth a line in the log.
  bool record(Verdict verdict) noexcept {
    const auto index = static_cast<std::size_t>(verdict);
    metrics_->verdicts[index].fetch_add(1, std::memory_order_relaxed);
    const std::uint32_t bit = 1u << index;
    return (recorded_.fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
  }
  // Starts a new epoch: batches that were answered before it count no longer, even if their comparison ends
  // later.
  void restart() noexcept {
    epoch_.fetch_add(1, std::memory_order_relaxed);
    recorded_.store(0, std::memory_order_relaxed);
  }
  std::uint32_t epoch() const noexcept { return epoch_.load(std::memory_order_relaxed); }

  // Called once per batch by the thread that ran it: whether to compare this batch.
  bool sample_batch() noexcept {
    const Share share = share_.load();
    return !share.none() && sampler_.sample(share);
  }

 private:
  friend class Engine;
  friend class ShadowWorker;

  const std::string name_;
  const std::weak_ptr<Lane> first_;  // weak: the lanes own the shadow
  const std::weak_ptr<Lane> second_;
  const ShadowTime time_;
  const ShadowKind kind_;
  const std::shared_ptr<ShadowMetrics> metrics_;  // may outlive it, as those of lanes do
  AtomicShare share_;
  std::atomic<double> tolerance_{1e-3};  // of the relative difference
  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<std::uint32_t> recorded_{0};  // a bit for each verdict since restart()
  std::atomic<bool> has_slot_{false};       // a batch of this shadow is in a slot of the worker: at most one
  ShareSampler sampler_;
  OutputScale scale_;  // used by the shadow's thread only
};

}  // namespace fused_mlp
