// SPDX-License-Identifier: Apache-2.0
// Measures the error of every activation on every instruction set, in units in the last place, over floats of
// all magnitudes. Prints the table of docs/internals/cpu-kernel.md. `activation_test 1` tests every float
// (minutes), the default every 9973rd.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "isa/isa.hpp"
#include "isa/vec_portable.hpp"
#include "tile/activation_math.hpp"

using namespace fused_mlp;

namespace {

// Parameters of the functions that have some.
Function function_of(Activation a) {
  Function function{.activation = a};
  const auto set = [&](float first, float second = 0, float third = 0) {
    function.parameters[0] = first, function.parameters[1] = second, function.parameters[2] = third;
  };
  if (a == Activation::kLeakyRelu) set(0.1f);
  if (a == Activation::kElu) set(0.75f);
  if (a == Activation::kSoftplus) set(2.0f, 20.0f, 0.5f);
  if (a == Activation::kClip) set(-1.0f, 6.0f);
  return function;
}

// Below this, intermediate results leave the float range, as in PyTorch: an absolute limit applies.
constexpr double kTiny = 1e-35;
// Above this, x * 6 in hardswish overflows, as in PyTorch.
constexpr double kHuge = 5e37;

double exact(Activation a, double x) {
  switch (a) {
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kLeakyRelu:
      return x > 0 ? x : x * static_cast<double>(0.1f);
    case Activation::kGelu:
      return x * 0.5 * std::erfc(-x * M_SQRT1_2);
    case Activation::kGeluTanh:
      return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::kElu:
      return x > 0 ? x : 0.75 * std::expm1(x);
    case Activation::kSoftplus:
      return std::fmax(x, 0) + 0.5 * std::log1p(std::exp(-2 * std::fabs(x)));
    case Activation::kHardswish:
      return x * std::fmin(std::fmax(x + 3, 0), 6) / 6;
    case Activation::kClip:
      return std::fmin(std::fmax(x, -1), 6);
    case Activation::kAbs:
      return std::fabs(x);
    case Activation::kExp:
      return std::exp(x);
    case Activation::kLog:
      return std::log(x);
    case Activation::kSqrt:
      return std::sqrt(x);
    case Activation::kSin:
      return std::sin(x);
    case Activation::kCos:
      return std::cos(x);
    case Activation::kErf:
      return std::erf(x);
    case Activation::kLog1p:
      return std::log1p(x);
    case Activation::kExpm1:
      return std::expm1(x);
    case Activation::kSign:
      return x > 0 ? 1 : x < 0 ? -1 : 0;
    case Activation::kMish:
      return x * std::tanh(std::log1p(std::exp(x)));
    default:
      return x;
  }
}

// The error in units in the last place of `expected` as a float.
double ulps(float got, double expected) {
  int exponent = 0;
  std::frexp(expected, &exponent);
  return std::fabs(static_cast<double>(got) - expected) / std::ldexp(1.0, exponent - 24);
}

struct Worst {
  double usual_ulps = 0;  // for |x| <= 4, the range of nearly all pre-activations
  double ulps = 0;        // for all x
  float at = 0;
  double tiny_error = 0;  // absolute, where the exact value is below kTiny
};

Worst measure(const Isa& isa, Activation a, std::uint32_t stride) {
  Worst worst;
  std::vector<float> x, y;
  const auto flush = [&] {
    y.resize(x.size());
    isa.apply(function_of(a), x.data(), y.data(), x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = exact(a, x[i]);
      if (std::isnan(expected) || std::isinf(expected)) {  // the logarithm and root of what has none
        CHECK((std::isnan(expected) ? std::isnan(y[i]) : y[i] == static_cast<float>(expected)));
        continue;
      }
      if (std::fabs(expected) > kHuge) continue;
      if (std::fabs(expected) < kTiny) {
        worst.tiny_error = std::fmax(worst.tiny_error, std::fabs(y[i] - expected));
        continue;
      }
      const double distance = ulps(y[i], expected);
      if (std::fabs(x[i]) <= 4.0f && !(distance <= worst.usual_ulps)) worst.usual_ulps = distance;
      if (!(distance <= worst.ulps)) {
        worst.ulps = distance;
        worst.at = x[i];
      }
    }
    x.clear();
  };
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += stride) {
    const auto low = static_cast<std::uint32_t>(bits);
    float value;
    std::memcpy(&value, &low, sizeof value);
    if (std::isfinite(value)) x.push_back(value);
    if (x.size() == 4096) flush();
  }
  flush();
  return worst;
}

// The exponential, which most activations use.
double measure_exp(std::uint32_t stride) {
  double worst = 0;
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += stride) {
    const auto low = static_cast<std::uint32_t>(bits);
    float x;
    std::memcpy(&x, &low, sizeof x);
    if (!(std::fabs(x) < 87.0f)) continue;
    worst =
        std::fmax(worst, ulps(Math<Portable>::exp(Portable::set1(x))[0], std::exp(static_cast<double>(x))));
  }
  return worst;
}

// Functions are the same bits on every instruction set, NaN apart, which has many.
void check_same_bits(Activation a, std::uint32_t stride) {
  const Function function = function_of(a);
  std::vector<float> x, first, other;
  for (std::uint64_t bits = 0; bits <= 0xFFFFFFFFu; bits += stride) {
    const auto low = static_cast<std::uint32_t>(bits);
    float value;
    std::memcpy(&value, &low, sizeof value);
    x.push_back(value);
  }
  first.resize(x.size());
  other.resize(x.size());
  kPortableIsa.apply(function, x.data(), first.data(), x.size());
  for (const Isa* isa : usable_isas(false)) {
    isa->apply(function, x.data(), other.data(), x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      CHECK((std::isnan(first[i]) ? std::isnan(other[i])
                                  : std::memcmp(&first[i], &other[i], sizeof(float)) == 0));
    }
  }
}

}  // namespace

TEST_CASE("functions are exact, and the same on every instruction set") {
  const char* const given = std::getenv("FUSED_MLP_TEST_STRIDE");  // of all floats, those that are tested
  const auto stride = static_cast<std::uint32_t>(given != nullptr ? std::strtoul(given, nullptr, 10) : 9973);
  const double exp_error = measure_exp(stride);
  std::printf("portable  exp         %6.2f ulp for |x| < 87\n", exp_error);
  CHECK(exp_error < 2.0);
  for (int a = 0; a < kPlainActivations; ++a) check_same_bits(static_cast<Activation>(a), stride);
  for (const Isa* isa : usable_isas(false)) {
    for (int a = 0; a < kPlainActivations; ++a) {
      const Worst worst = measure(*isa, static_cast<Activation>(a), stride);
      std::printf("%-9s %-11s %6.2f ulp for |x| <= 4, %6.2f for all x (at %.7g), %.1g below %.0g\n",
                  isa->name, kActivationNames[static_cast<std::size_t>(a)].data(), worst.usual_ulps,
                  worst.ulps, worst.at, worst.tiny_error, kTiny);
      // Tails that fall like e^-x^2 amplify the rounding error of x^2; in PyTorch 1 + tanh is zero there.
      const bool steep = static_cast<Activation>(a) == Activation::kGeluTanh;
      CHECK(worst.usual_ulps < (steep ? 20.0 : 5.0));
      CHECK(worst.ulps < (steep ? 200.0 : 6.0));
      CHECK(worst.tiny_error < 1e-36);
    }
  }
}
