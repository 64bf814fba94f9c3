// SPDX-License-Identifier: Apache-2.0
// How long a batch of a lane takes, by its rows: a fixed part (weights are read once) and a part per row.
// Both are measured when the lane is made; what batches really took then corrects them, each size for itself.
// The pace tells the time of the kernel from the time that passes: a batch is gathered and answered too, and
// shares its core with event loops and other processes.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/clock.hpp"

namespace fused_mlp {

class Kernel;

struct Cost {
  double fixed_ns = 0;
  double row_ns = 0;
};

// On the calling thread alone, with rows of zeros. Zeros if the kernel fails.
Cost measure_cost(Kernel& kernel, std::size_t in_features, std::size_t out_features, const Clock& clock);

// Relaxed atomics: concurrent corrections may be lost, which an estimate can bear.
class CostEstimate {
 public:
  // Zeros: unknown. Every batch is then estimated at 0, until the first one that took some time.
  explicit CostEstimate(Cost measured) noexcept : fixed_ns_(measured.fixed_ns), row_ns_(measured.row_ns) {}

  Nanos of(std::uint64_t rows) const noexcept;
  // The part of it that does not depend on the number of rows.
  Nanos fixed(std::uint64_t rows) const noexcept;
  // The most rows that take no longer than that; 0 if a single one does.
  std::uint64_t rows_within(Nanos budget) const noexcept;
  // So many rows take as long as the fixed part.
  std::uint64_t rows_worth_fixed() const noexcept;
  void correct(std::uint64_t rows, Nanos took) noexcept;

  // Elapsed time, divided by estimated time.
  double pace() const noexcept { return pace_.load(std::memory_order_relaxed); }
  Nanos elapsed(std::uint64_t rows) const noexcept {
    return static_cast<Nanos>(pace() * static_cast<double>(of(rows)));
  }
  // Updates the pace by a batch: its estimate, and the time from when it was taken until it was answered.
  void keep_pace(Nanos estimate, Nanos elapsed) noexcept;
  // Lowers the pace: the estimate had all tickets of a batch dropped, so no batch could correct it.
  void doubt() noexcept;

 private:
  static constexpr std::size_t kSizes = 14;  // 1, 2-3, 4-7, ..., 8192 and more rows
  static std::size_t size_of(std::uint64_t rows) noexcept;
  double ratio(std::size_t size) const noexcept;
  double shape(double rows) const noexcept {
    return fixed_ns_.load(std::memory_order_relaxed) + row_ns_.load(std::memory_order_relaxed) * rows;
  }

  std::atomic<double> fixed_ns_, row_ns_;
  std::atomic<double> pace_{1};
  std::array<std::atomic<float>, kSizes> ratios_{};  // took / shape, a moving average; 0: no batch yet
};

}  // namespace fused_mlp
