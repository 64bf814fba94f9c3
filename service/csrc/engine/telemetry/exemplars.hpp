// SPDX-License-Identifier: Apache-2.0
// For each bucket of a histogram the last request in it that a tracing system knows: OpenMetrics' exemplars.
// Only such requests pay for it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include "engine/telemetry/histogram.hpp"
#include "engine/telemetry/trace_context.hpp"

namespace fused_mlp {

class Exemplars {
 public:
  // Left out where another thread is at it: the next request will do.
  void offer(std::int64_t value, const TraceContext& trace) noexcept {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || !metrics_on.load(std::memory_order_relaxed)) return;
    value = value < 0 ? 0 : value;
    places_[DurationHistogram::bucket_of(value)] = {
        trace.trace_high, trace.trace_low, trace.span, value,
        std::chrono::system_clock::now().time_since_epoch() / std::chrono::milliseconds(1)};
  }
  std::vector<Exemplar> snapshot() const {
    const std::lock_guard lock(mutex_);
    return {places_.begin(), places_.end()};
  }

 private:
  mutable std::mutex mutex_;
  std::array<Exemplar, kDurationBounds.size() + 1> places_{};
};

// The exemplars of one lane.
struct LaneExemplars {
  Exemplars request, queue, compute;
};

}  // namespace fused_mlp
