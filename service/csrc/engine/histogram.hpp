// Histograms with fixed bounds, recorded with two relaxed atomic additions: no locks, any thread.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fused_mlp {

// Upper bounds, inclusive (Prometheus `le`). Durations in ns. A fused kernel of a small model takes
// 1-15 us, so the first bounds are where most of ours begin; about three per factor of two and a half
// above keeps an interpolated p50 or p99 within some 20 % of the truth.
inline constexpr std::array<std::int64_t, 36> kDurationBounds = {
    1'000,       2'000,       5'000,         10'000,        20'000,        35'000,
    50'000,      75'000,      100'000,       150'000,       200'000,       350'000,
    500'000,     750'000,     1'000'000,     1'500'000,     2'000'000,     3'500'000,
    5'000'000,   7'500'000,   10'000'000,    15'000'000,    20'000'000,    35'000'000,
    50'000'000,  75'000'000,  100'000'000,   150'000'000,   200'000'000,   350'000'000,
    500'000'000, 750'000'000, 1'000'000'000, 2'000'000'000, 5'000'000'000, 10'000'000'000};
inline constexpr std::array<std::int64_t, 14> kRowBounds = {1,   2,   4,   8,    16,   32,   64,
                                                            128, 256, 512, 1024, 2048, 4096, 8192};

// Whether anything is recorded. Off only to measure what recording costs.
inline std::atomic<bool> metrics_on{true};

struct HistogramSnapshot {
  std::vector<std::uint64_t> buckets;  // not cumulative; the last is +Inf
  std::uint64_t count = 0;             // the sum of the buckets read, so the two always agree
  std::int64_t sum = 0;
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
    result.buckets.reserve(buckets_.size());
    // A reader may see a bucket without its share of the sum: off by what is in flight, never torn.
    result.sum = sum_.load(std::memory_order_relaxed);
    for (const auto& bucket : buckets_) {
      result.buckets.push_back(bucket.load(std::memory_order_relaxed));
      result.count += result.buckets.back();
    }
    return result;
  }

  static constexpr std::size_t bucket_of(std::int64_t value) noexcept {
    // The bit width of a value narrows it down to two or three bounds; a search of all would cost more
    // than the two additions.
    std::size_t i = kFirst[static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(value)))];
    while (i < kBounds.size() && value > kBounds[i]) ++i;
    return i;
  }

 private:
  // For each bit width, the first bound that a value of that width can fall under.
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
using RowHistogram = Histogram<kRowBounds>;

}  // namespace fused_mlp
