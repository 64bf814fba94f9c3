// SPDX-License-Identifier: Apache-2.0
#include "profile/phases.hpp"

#include <unistd.h>

#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include <chrono>
#include <mutex>

#include "profile/ticks.hpp"

namespace fused_mlp {

namespace {

// Locked once per span, which is cheap compared with a layer, and only while recording.
std::mutex mutex;
std::vector<PhaseSpan> spans;
std::size_t max_spans = 0;
std::size_t dropped = 0;

std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::uint32_t thread_number() {
#if defined(__linux__)
  static thread_local const auto number = static_cast<std::uint32_t>(syscall(SYS_gettid));
  return number;
#else
  return 0;
#endif
}

}  // namespace

void start_recording_phases(std::size_t capacity) {
  const std::lock_guard<std::mutex> lock(mutex);
  spans.clear();
  spans.reserve(capacity);
  max_spans = capacity;
  dropped = 0;
  detail::recording.store(true, std::memory_order_relaxed);
}

PhaseRecording stop_recording_phases() {
  const std::lock_guard<std::mutex> lock(mutex);
  detail::recording.store(false, std::memory_order_relaxed);
  max_spans = 0;
  PhaseRecording recording{std::move(spans), dropped};
  spans = {};
  return recording;
}

RecordedPhase::RecordedPhase(Phase phase, std::size_t layer, std::size_t rows, std::size_t in,
                             std::size_t out, std::uint64_t flops)
    : recorded_(recording_phases()) {
  if (!recorded_) return;
  span_ = {.phase = phase,
           .layer = static_cast<std::uint32_t>(layer),
           .thread = thread_number(),
           .rows = rows,
           .in = in,
           .out = out,
           .start_ns = steady_ns(),
           .end_ns = 0,
           .product_ns = 0,
           .epilogue_ns = 0,
           .tiles = 0,
           .flops = flops};
  first_tick_ = ticks();
}

RecordedPhase::~RecordedPhase() {
  if (!recorded_) return;
  const unsigned long long elapsed = ticks() - first_tick_;
  span_.end_ns = steady_ns();
  span_.tiles = tiles_.tiles;
  if (elapsed > 0) {
    // Converts ticks by the ratio for the whole span, so that the tick rate need not be known.
    const double ns = static_cast<double>(span_.end_ns - span_.start_ns) / static_cast<double>(elapsed);
    span_.product_ns = static_cast<std::int64_t>(static_cast<double>(tiles_.product) * ns);
    span_.epilogue_ns = static_cast<std::int64_t>(static_cast<double>(tiles_.epilogue) * ns);
  }
  const std::lock_guard<std::mutex> lock(mutex);
  if (spans.size() < max_spans) {
    spans.push_back(span_);
  } else if (recording_phases()) {
    ++dropped;
  }
}

}  // namespace fused_mlp
