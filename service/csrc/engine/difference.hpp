// The difference between two outputs for the same rows. Pure arithmetic; OutputScale is the only state.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace fused_mlp {

struct Difference {
  double absolute = 0;  // the largest of all outputs; infinite where only the reference is finite
  double relative = 0;  // the largest after each is divided by the scale of its row
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

// values, reference: (rows, width). Adds the reference's rows to the scale, then compares. Skips elements
// whose reference is not finite: either the input held NaN or infinity, which torch's code paths treat
// differently, or half precision overflowed where a float32 kernel did not.
Difference compare_outputs(const float* values, const float* reference, std::size_t rows, std::size_t width,
                           OutputScale& scale) noexcept;

}  // namespace fused_mlp
