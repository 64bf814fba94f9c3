// How far two outputs for the same rows are apart. Pure arithmetic; no state but the scale of what was seen.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace fused_mlp {

struct Difference {
  double absolute = 0;  // the largest over all outputs; infinite where only the reference is finite
  double relative = 0;  // the same, each divided by the scale of its row
};

// What "large" means for a model's outputs: the geometric mean, over the rows seen so far, of a row's largest
// magnitude; not the arithmetic one, which a single enormous row would raise for good. A difference is
// divided by that or by its own row's largest magnitude, whichever is more. So an output that happens to be
// near zero, where rounding in the sums before it is all there is, raises no false alarm, and a model whose
// outputs are all tiny is judged as strictly as any other.
class OutputScale {
 public:
  static constexpr double kLeast = 1e-6;  // until anything but zeros has been seen
  void add_row(double largest) noexcept {
    if (largest == 0) return;
    logarithms_ += std::log(largest);
    ++rows_;
  }
  double typical() const noexcept {
    const double mean = rows_ == 0 ? 0 : std::exp(logarithms_ / static_cast<double>(rows_));
    return mean > kLeast ? mean : kLeast;
  }

 private:
  double logarithms_ = 0;
  std::uint64_t rows_ = 0;
};

// values, reference: (rows, width). Where the reference is not finite there is nothing to compare with: a
// caller sent NaN or infinity, which torch's own code paths treat differently, or half precision overflowed
// where a kernel that computes in float32 did not. Adds the reference's rows to the scale first.
Difference compare_outputs(const float* values, const float* reference, std::size_t rows, std::size_t width,
                           OutputScale& scale) noexcept;

}  // namespace fused_mlp
