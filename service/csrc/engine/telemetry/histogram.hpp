// SPDX-License-Identifier: Apache-2.0
// Histograms with fixed bounds. Recording a value is two relaxed atomic additions, on any thread.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fused_mlp {

// Inclusive upper bounds (Prometheus `le`); durations in ns. The first bounds resolve a fused kernel of a
// small model (1-15 us). The spacing above keeps an interpolated p50 or p99 within about 20 %.
inline constexpr std::array<std::int64_t, 36> kDurationBounds = {
    1'000,       2'000,       5'000,         10'000,        20'000,        35'000,
    50'000,      75'000,      100'000,       150'000,       200'000,       350'000,
    500'000,     750'000,     1'000'000,     1'500'000,     2'000'000,     3'500'000,
    5'000'000,   7'500'000,   10'000'000,    15'000'000,    20'000'000,    35'000'000,
    50'000'000,  75'000'000,  100'000'000,   150'000'000,   200'000'000,   350'000'000,
    500'000'000, 750'000'000, 1'000'000'000, 2'000'000'000, 5'000'000'000, 10'000'000'000};
inline constexpr std::array<std::int64_t, 14> kRowBounds = {1,   2,   4,   8,    16,   32,   64,
                                                            128, 256, 512, 1024, 2048, 4096, 8192};

// Switched off only to measure the cost of recording.
extern std::atomic<bool> metrics_on;  // defined in process_state.cpp

// A request that a tracing system knows, and what a histogram counted of it.
struct Exemplar {
  std::uint64_t trace_high = 0, trace_low = 0;  // both 0: there is none
  std::uint64_t span = 0;
  std::int64_t value = 0;
  std::int64_t unix_ms = 0;
};

struct HistogramSnapshot {
  std::vector<std::uint64_t> buckets;  // not cumulative; the last is +Inf
  std::uint64_t count = 0;             // the sum of `buckets`, so that both always agree
  std::int64_t sum = 0;
  std::vector<Exemplar> exemplars;  // one for each bucket, or none at all
};

template <const auto& kBounds>
class Histogram {
 public:
  void observe(std::int64_t value) noexcept {
    if (!metrics_on.load(std::memory_order_relaxed)) return;
    if (value < 0) value = 0;
    buckets_[bucket_of(value)].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }

  HistogramSnapshot snapshot() const {
    HistogramSnapshot result;
    add_to(result);
    return result;
  }

  std::int64_t sum() const noexcept { return sum_.load(std::memory_order_relaxed); }

  void add_to(HistogramSnapshot& result) const {
    result.buckets.resize(buckets_.size());
    // A value being recorded may show up in a bucket but not in the sum.
    result.sum += sum();
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      const std::uint64_t count = buckets_[i].load(std::memory_order_relaxed);
      result.buckets[i] += count;
      result.count += count;
    }
  }

  static constexpr std::size_t bucket_of(std::int64_t value) noexcept {
    // The bit width of a value leaves two or three candidate bounds. Searching all of them would cost more
    // than the two additions.
    std::size_t i = kFirst[static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(value)))];
    while (i < kBounds.size() && value > kBounds[i]) ++i;
    return i;
  }

 private:
  // For each bit width, the bucket of the smallest value of that width.
  static constexpr std::array<std::uint8_t, 65> kFirst = [] {
    std::array<std::uint8_t, 65> first{};
    for (std::size_t width = 1; width < first.size(); ++width) {
      const std::uint64_t smallest = std::uint64_t{1} << (width - 1);
      std::uint8_t i = 0;
      while (i < kBounds.size() && smallest > static_cast<std::uint64_t>(kBounds[i])) ++i;
      first[width] = i;
    }
    return first;
  }();

  std::array<std::atomic<std::uint64_t>, kBounds.size() + 1> buckets_{};
  std::atomic<std::int64_t> sum_{0};
};

using DurationHistogram = Histogram<kDurationBounds>;

// Durations at a resolution of 1/32 from 1 us to 34 s, to compare two arms: 32 buckets for each power of two.
// The buckets of kDurationBounds would turn a ratio of 1.5 into one of up to 3.75.
class LogLinearHistogram {
 public:
  static constexpr int kSubBits = 5, kFirstWidth = 10, kLastWidth = 35;  // widths as powers of two, in ns
  static constexpr std::size_t kBuckets =
      (std::size_t{kLastWidth - kFirstWidth} << kSubBits) + 2;  // with one below and one above

  void observe(std::int64_t value) noexcept {
    buckets_[bucket_of(value)].fetch_add(1, std::memory_order_relaxed);
  }
  std::vector<std::uint64_t> snapshot() const {
    std::vector<std::uint64_t> counts;
    counts.reserve(kBuckets);
    for (const auto& each : buckets_) counts.push_back(each.load(std::memory_order_relaxed));
    return counts;
  }

  static constexpr std::size_t bucket_of(std::int64_t value) noexcept {
    if (value < std::int64_t{1} << kFirstWidth) return 0;
    if (value >= std::int64_t{1} << kLastWidth) return kBuckets - 1;
    const auto bits = static_cast<std::uint64_t>(value);
    const int power = std::bit_width(bits) - 1;
    const std::uint64_t sub = (bits >> (power - kSubBits)) & ((1u << kSubBits) - 1);
    return 1 + (static_cast<std::size_t>(power - kFirstWidth) << kSubBits) + sub;
  }
  // The smallest value of a bucket, from 1 on.
  static constexpr std::int64_t lower_bound(std::size_t bucket) noexcept {
    const std::size_t place = bucket - 1;
    const int power = kFirstWidth + static_cast<int>(place >> kSubBits);
    const std::int64_t sub = static_cast<std::int64_t>(place & ((1u << kSubBits) - 1));
    return ((std::int64_t{1} << kSubBits) + sub) << (power - kSubBits);
  }

 private:
  std::array<std::atomic<std::uint64_t>, kBuckets> buckets_{};
};
using RowHistogram = Histogram<kRowBounds>;

}  // namespace fused_mlp
