// SPDX-License-Identifier: Apache-2.0
#include "engine/shadow/difference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fused_mlp {

namespace {

double largest_finite(const float* row, std::size_t width) noexcept {
  double largest = 0;
  for (std::size_t i = 0; i < width; ++i) {
    if (std::isfinite(row[i])) largest = std::max(largest, std::abs(static_cast<double>(row[i])));
  }
  return largest;
}

double distance(float value, float reference) noexcept {
  if (!std::isfinite(reference)) return 0;
  if (!std::isfinite(value)) return std::numeric_limits<double>::infinity();
  return std::abs(static_cast<double>(value) - static_cast<double>(reference));
}

std::size_t largest_at(const float* row, std::size_t width) noexcept {
  return static_cast<std::size_t>(std::max_element(row, row + width) - row);
}

}  // namespace

RowDifference compare_row(const float* values, const float* reference, std::size_t width,
                          double typical) noexcept {
  double largest = 0;
  for (std::size_t i = 0; i < width; ++i) {
    largest = std::max({largest, distance(values[i], reference[i]), distance(reference[i], values[i])});
  }
  return {largest / std::max(typical, largest_finite(reference, width)),
          largest_at(values, width) != largest_at(reference, width)};
}

Difference compare_outputs(const float* values, const float* reference, std::size_t rows, std::size_t width,
                           OutputScale& scale, double tolerance) noexcept {
  for (std::size_t row = 0; row < rows; ++row) scale.add_row(largest_finite(reference + row * width, width));
  Difference difference;
  for (std::size_t row = 0; row < rows; ++row) {
    const float* a = values + row * width;
    const float* b = reference + row * width;
    double largest = 0;
    bool only_reference_overflowed = false;
    for (std::size_t i = 0; i < width; ++i) {
      largest = std::max(largest, distance(a[i], b[i]));
      only_reference_overflowed |= std::isfinite(a[i]) && !std::isfinite(b[i]);
    }
    if (largest == 0 && !only_reference_overflowed) continue;
    const double relative = largest / std::max(scale.typical(), largest_finite(b, width));
    difference.absolute = std::max(difference.absolute, largest);
    difference.relative = std::max(difference.relative, relative);
    if (relative > tolerance || only_reference_overflowed) difference.dispute(row);
  }
  return difference;
}

}  // namespace fused_mlp
