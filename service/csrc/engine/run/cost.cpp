// SPDX-License-Identifier: Apache-2.0
#include "engine/run/cost.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "engine/run/busy_threads.hpp"
#include "engine/run/kernel.hpp"

namespace fused_mlp {

namespace {

constexpr std::size_t kProbeRows = 32;  // enough to tell the part per row from the fixed one
// For a kernel that was not measured: the fixed part is assumed to be worth this many rows.
constexpr double kAssumedFixedRows = 8;
// A thread that was descheduled during a batch reports far too much: down fast, up slowly, never by much.
constexpr double kDown = 0.25, kUp = 1.0 / 16, kMaxUp = 4;
// The pace is a mean: it follows both ways alike.
constexpr double kPaceGain = 1.0 / 8, kMaxPaceUp = 2;
constexpr double kDoubt = 0.9, kMinPace = 0.01, kMaxPace = 64;
// A smaller change is not stored: all cores would have to fetch it again.
constexpr double kUnchanged = 0.01;

// While it lives, kernels on this thread use no other core.
class AloneScope {
 public:
  AloneScope() noexcept : before_(this_thread_low_priority) { this_thread_low_priority = true; }
  ~AloneScope() { this_thread_low_priority = before_; }
  AloneScope(const AloneScope&) = delete;
  AloneScope& operator=(const AloneScope&) = delete;

 private:
  const bool before_;
};

}  // namespace

Cost measure_cost(Kernel& kernel, std::size_t in_features, std::size_t out_features, const Clock& clock) {
  const AloneScope alone;
  BatchBuffer x, y;
  std::fill_n(x.reserve(kProbeRows * in_features), kProbeRows * in_features, 0.0f);
  y.reserve(kProbeRows * out_features);
  KernelResult result;
  const auto time = [&](std::size_t rows) {
    const Nanos begin = clock.now();
    kernel.run(x, 0, rows, y, result);
    return static_cast<double>(clock.now() - begin);
  };
  time(kProbeRows);  // brings weights and code into memory
  const double one = std::min(time(1), time(1)), many = std::min(time(kProbeRows), time(kProbeRows));
  if (result.failed) return {};
  const double row = std::max(0.0, (many - one) / (kProbeRows - 1));
  return {std::max(0.0, one - row), row};
}

std::size_t CostEstimate::size_of(std::uint64_t rows) noexcept {
  return std::min<std::size_t>(kSizes,
                               static_cast<std::size_t>(std::bit_width(std::max<std::uint64_t>(rows, 1)))) -
         1;
}

// The ratio of the nearest size that has been seen, a smaller one first.
double CostEstimate::ratio(std::size_t size) const noexcept {
  for (std::size_t i = size + 1; i-- > 0;) {
    if (const float known = ratios_[i].load(std::memory_order_relaxed); known > 0) return known;
  }
  for (std::size_t i = size + 1; i < kSizes; ++i) {
    if (const float known = ratios_[i].load(std::memory_order_relaxed); known > 0) return known;
  }
  return 1;
}

Nanos CostEstimate::of(std::uint64_t rows) const noexcept {
  return static_cast<Nanos>(ratio(size_of(rows)) * shape(static_cast<double>(rows)));
}

Nanos CostEstimate::fixed(std::uint64_t rows) const noexcept {
  return static_cast<Nanos>(ratio(size_of(rows)) * fixed_ns_.load(std::memory_order_relaxed));
}

std::uint64_t CostEstimate::rows_within(Nanos budget) const noexcept {
  const double fixed = fixed_ns_.load(std::memory_order_relaxed),
               row = row_ns_.load(std::memory_order_relaxed);
  for (std::size_t size = kSizes; size-- > 0;) {
    const std::uint64_t least = std::uint64_t{1} << size;
    const double left = static_cast<double>(budget) / ratio(size) - fixed;
    if (left < row * static_cast<double>(least)) continue;
    if (size == kSizes - 1 && row <= 0) return std::numeric_limits<std::uint32_t>::max();
    const double most = row > 0 ? left / row : std::numeric_limits<std::uint32_t>::max();
    return size == kSizes - 1 ? static_cast<std::uint64_t>(std::min(most, 4e9))
                              : std::min(2 * least - 1, static_cast<std::uint64_t>(std::min(most, 4e9)));
  }
  return 0;
}

std::uint64_t CostEstimate::rows_worth_fixed() const noexcept {
  const double fixed = fixed_ns_.load(std::memory_order_relaxed),
               row = row_ns_.load(std::memory_order_relaxed);
  return row > 0 ? static_cast<std::uint64_t>(std::min(fixed / row, 1e9)) : 0;
}

void CostEstimate::doubt() noexcept {
  pace_.store(std::max(kMinPace, pace() * kDoubt), std::memory_order_relaxed);
}

void CostEstimate::keep_pace(Nanos estimate, Nanos elapsed) noexcept {
  if (estimate <= 0 || elapsed <= 0) return;
  const double before = pace();
  const double sample =
      std::min(static_cast<double>(elapsed) / static_cast<double>(estimate), kMaxPaceUp * before + 1);
  pace_.store(std::min(before + (sample - before) * kPaceGain, kMaxPace), std::memory_order_relaxed);
}

void CostEstimate::correct(std::uint64_t rows, Nanos took) noexcept {
  if (took <= 0) return;
  const auto count = static_cast<double>(rows);
  double expected = shape(count);
  if (expected <= 0) {
    const double row = static_cast<double>(took) / (count + kAssumedFixedRows);
    row_ns_.store(row, std::memory_order_relaxed);
    fixed_ns_.store(row * kAssumedFixedRows, std::memory_order_relaxed);
    expected = static_cast<double>(took);
  }
  const std::size_t size = size_of(rows);
  const bool first = ratios_[size].load(std::memory_order_relaxed) == 0;
  const double before = ratio(size);
  const double sample = std::min(static_cast<double>(took) / expected, kMaxUp * before);
  const double gain = first ? 1 : sample < before ? kDown : kUp;
  const double after = before + (sample - before) * gain;
  if (!first && std::abs(after - before) < kUnchanged * before) return;
  ratios_[size].store(static_cast<float>(after), std::memory_order_relaxed);
}

}  // namespace fused_mlp
