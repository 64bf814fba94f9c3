// SPDX-License-Identifier: Apache-2.0
// The difference between two outputs for the same rows. Pure arithmetic; OutputScale is the only state.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fused_mlp {

// Bounds of the histogram of relative differences by row.
inline constexpr std::array<double, 12> kDifferenceBounds = {1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 0.01,
                                                             0.03, 0.1,  0.3,  1,    3,    10};

struct Difference {
  static constexpr std::size_t kMaxRows = 4;

  double absolute = 0;  // the largest of all outputs; infinite where only the reference is finite
  double relative = 0;  // the largest after each is divided by the scale of its row

  // The first rows with a relative difference above the tolerance, or where only the reference is not finite.
  std::span<const std::size_t> disputed() const noexcept { return {rows_.data(), count_}; }
  void dispute(std::size_t row) noexcept {
    if (count_ < kMaxRows) rows_[count_++] = row;
  }

 private:
  std::array<std::size_t, kMaxRows> rows_{};
  std::size_t count_ = 0;
};

// Rows on which the outputs differ, for the referee: the first few, and copies.
struct Dispute {
  static constexpr std::size_t kMaxFloats = 1 << 20;  // 4 MB; a single row may be larger

  Difference difference;    // of the whole batch
  std::uint32_t epoch = 0;  // the shadow's, when the batch was answered
  std::vector<float> x;
  std::vector<float> fused;
  std::vector<float> unfused;
};

// The typical magnitude of a model's outputs: the geometric mean, over all rows seen, of a row's largest
// magnitude. (A single enormous row would raise an arithmetic mean for good.) A difference is divided by the
// larger of this and its own row's largest magnitude. So rounding errors in an output near zero are no
// mismatch, and a model with tiny outputs is checked as strictly as any other.
class OutputScale {
 public:
  static constexpr double kMinimum = 1e-6;  // until a row that is not all zeros was seen
  void add_row(double largest) noexcept {
    if (largest == 0) return;
    logarithms_ += std::log(largest);
    ++rows_;
  }
  double typical() const noexcept {
    const double mean = rows_ == 0 ? 0 : std::exp(logarithms_ / static_cast<double>(rows_));
    return mean > kMinimum ? mean : kMinimum;
  }

 private:
  double logarithms_ = 0;
  std::uint64_t rows_ = 0;
};

// One row of two versions. A value that is finite in one of them only is an infinite difference.
struct RowDifference {
  double relative = 0;  // the largest, divided as above
  bool top1_changed = false;
};
RowDifference compare_row(const float* values, const float* reference, std::size_t width,
                          double typical) noexcept;

// values, reference: (rows, width). Adds the reference's rows to the scale, then compares. An element whose
// reference is not finite has no difference: either the input held NaN or infinity, which torch's code paths
// treat differently, or half precision overflowed where a float32 kernel did not.
Difference compare_outputs(const float* values, const float* reference, std::size_t rows, std::size_t width,
                           OutputScale& scale, double tolerance) noexcept;

}  // namespace fused_mlp
