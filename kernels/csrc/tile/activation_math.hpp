// SPDX-License-Identifier: Apache-2.0
// Functions of one register, for every instruction set. No tables and no branches: all lanes do the same
// operations, so that a result never depends on its neighbours. (The exception: sine and cosine of huge
// values are computed lane by lane.) tests/activation_test.cpp measures the errors. NaN and infinities behave
// as in eager PyTorch: min and max are ordered so that NaN passes through.
#pragma once

#include "tile/function.hpp"

// Declared here, because <cmath> brings inline functions (see layer.hpp).
extern "C" float sinf(float) noexcept;
extern "C" float cosf(float) noexcept;

namespace fused_mlp {

template <class V>
struct Math {
  using Reg = typename V::Reg;

  static Reg c(float v) { return V::set1(v); }

  static Reg polynomial(Reg, Reg sum) { return sum; }
  // Horner's method, highest power first: ((sum * x + next) * x + ...)
  template <class... Rest>
  static Reg polynomial(Reg x, Reg sum, float next, Rest... rest) {
    return polynomial(x, V::fma(sum, x, c(next)), rest...);
  }

  // e^r - 1 for |r| <= ln2 / 2.
  static Reg small_expm1(Reg r) {
    const Reg q =
        polynomial(r, c(0.001394580605f), 0.008366239788f, 0.04166629407f, 0.1666654656f, 0.5000000057f);
    return V::fma(r * r, q, r);
  }

  static constexpr float kMagic =
      12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  static constexpr float kLog2E = 1.44269504f;
  static constexpr float kMinusLn2High = -0.693359375f;  // few bits: its product with n is exact
  static constexpr float kMinusLn2Low = 2.12194440e-4f;

  // x = n ln2 + r. Returns e^r - 1; `biased` is kMagic + n.
  static Reg reduce(Reg x, Reg& biased) {
    biased = V::fma(x, c(kLog2E), c(kMagic));
    const Reg n = biased - c(kMagic);
    const Reg r = V::fma(n, c(kMinusLn2High), x);
    return small_expm1(V::fma(n, c(kMinusLn2Low), r));
  }

  // Underflows gradually and overflows to infinity, as in libm.
  static Reg exp(Reg x) {
    x = V::min(c(89.0f), V::max(c(-104.0f), x));
    Reg biased, first, second;
    const Reg m = reduce(x, biased);
    V::pow2_factors(biased, first, second);
    return V::fma(m, first, first) * second;
  }

  // Zero below 2^-126: for callers that add 1 to the result.
  static Reg exp_for_sum(Reg x) {
    x = V::min(c(89.0f), V::max(c(-87.0f), x));
    Reg biased;
    const Reg m = reduce(x, biased);
    const Reg half = V::pow2(biased - c(1.0f));  // half of 2^n, because 2^128 has no float32 exponent
    const Reg e = V::fma(m, half, half);
    return e + e;
  }

  // For x <= 88.
  static Reg bounded_expm1(Reg x) {
    x = V::max(c(-20.0f), x);
    Reg biased;
    const Reg m = reduce(x, biased);
    const Reg scale = V::pow2(biased);
    return V::fma(m, scale, scale - c(1.0f));
  }

  static Reg expm1(Reg x) {
    const Reg clipped = V::min(c(89.0f), V::max(c(-20.0f), x));
    Reg biased;
    const Reg m = reduce(clipped, biased);
    const Reg half = V::pow2(biased - c(1.0f));  // see exp_for_sum
    const Reg e = V::fma(m, half, half - c(0.5f));
    return V::copysign(e + e, x);  // the reduction loses the sign of zero
  }

  // For -1/2 <= t <= 1: 2 atanh(t / (2 + t)).
  static Reg small_log1p(Reg t) {
    const Reg s = t / (c(2.0f) + t);
    const Reg z = s * s;
    const Reg q = polynomial(z, c(0.1195868354f), 0.1076796528f, 0.1430310277f, 0.1999965102f, 0.3333333509f);
    const Reg twice = s + s;
    return V::fma(twice * z, q, twice);
  }

  static Reg log(Reg x) {
    const auto is_small = V::less(x, c(1.17549435e-38f));  // denormal, and what has no logarithm
    Reg exponent;
    const Reg m = V::split(V::select(is_small, x * c(16777216.0f), x), exponent);
    exponent = exponent - V::select(is_small, c(24.0f), V::zero());
    const Reg low = V::fma(exponent, c(-kMinusLn2Low), small_log1p(m - c(1.0f)));
    const Reg result = V::fma(exponent, c(-kMinusLn2High), low);
    const Reg none = V::select(V::less(x, V::zero()), c(__builtin_nanf("")), c(-__builtin_inff()));
    const Reg positive = V::select(V::less(x, c(__builtin_inff())), result, x);  // infinity and NaN are kept
    return V::select(V::less(x, c(1e-45f)), none, positive);
  }

  // Outside of [-1/2, 1] the rounding of the sum is one unit in the last place of its logarithm at most.
  static Reg log1p(Reg x) {
    const auto is_near = V::less(V::abs(x - c(0.25f)), c(0.75f));
    return V::select(is_near, small_log1p(x), log(c(1.0f) + x));
  }

  static Reg sin(Reg x) { return periodic<false>(x); }
  static Reg cos(Reg x) { return periodic<true>(x); }

  // x = n pi / 2 + r. The first difference is exact up to kHugeAngle, if multiply-add rounds once.
  static constexpr float kHugeAngle = 65536.0f;
  template <bool Cosine>
  static Reg periodic(Reg x) {
    Reg biased = V::fma(x, c(0.636619772f), c(kMagic));
    const Reg n = biased - c(kMagic);
    Reg r = V::fma(n, c(-1.57079637050628662109375f), x);
    r = V::fma(n, c(4.37113900018624283e-8f), r);
    r = V::fma(n, c(1.71512451e-15f), r);
    const Reg z = r * r;
    const Reg sine =
        V::fma(r * z, polynomial(z, c(-1.9515295891e-4f), 8.3321608736e-3f, -1.6666654611e-1f), r);
    const Reg q = polynomial(z, c(2.443315711809948e-5f), -1.388731625493765e-3f, 4.166664568298827e-2f);
    const Reg cosine = V::fma(z * z, q, V::fma(z, c(-0.5f), c(1.0f)));
    if constexpr (Cosine) biased = biased + c(1.0f);  // cos x = sin(x + pi / 2)
    const Reg result = V::negate_by_second_bit(V::select(V::is_odd(biased), cosine, sine), biased);
    if (V::any(V::less(c(kHugeAngle), V::abs(x)))) [[unlikely]]
      return lane_by_lane<Cosine>(x, result);
    return result;
  }
  // Replaces `result` in the lanes of huge angles.
  template <bool Cosine>
  static Reg lane_by_lane(Reg x, Reg result) {
    alignas(64) float in[V::kLanes];
    alignas(64) float out[V::kLanes];
    V::store(in, x);
    V::store(out, result);
    for (int i = 0; i < V::kLanes; ++i) {
      if (__builtin_fabsf(in[i]) > kHugeAngle) out[i] = Cosine ? cosf(in[i]) : sinf(in[i]);
    }
    return V::load(out);
  }

  static Reg sigmoid(Reg x) { return c(1.0f) / (c(1.0f) + exp_for_sum(-x)); }

  static Reg tanh(Reg x) {
    const Reg t = V::abs(x);
    const Reg e = bounded_expm1(V::min(c(20.0f), t + t));
    return V::copysign(e / (e + c(2.0f)), x);
  }

  static Reg softplus(Reg x) { return V::max(c(0.0f), x) + small_log1p(exp(-V::abs(x))); }

  // (1 + erf(-t / sqrt 2)) / 2 for t >= 0, with full relative precision: e^(-t^2 / 2) P(t) / Q(t), zero for
  // t >= 13.27.
  static Reg normal_tail(Reg t) {
    t = V::min(c(13.27f), t);
    const Reg minus_half = c(-0.5f) * t;
    const Reg biased = V::fma(c(-0.5f * kLog2E) * t, t, c(kMagic));
    const Reg n = biased - c(kMagic);
    const Reg r = V::fma(minus_half, t, n * c(kMinusLn2High));  // FMA: the square is not rounded
    const Reg m = small_expm1(V::fma(n, c(kMinusLn2Low), r));
    const Reg scale = V::pow2(biased);
    const Reg e = V::fma(m, scale, scale);
    const Reg p = polynomial(t, c(0.00402015921f), 0.0399839724f, 0.181306182f, 0.435685565f, 0.5f);
    const Reg q = polynomial(t, c(0.0100769015f), 0.100232337f, 0.464378806f, 1.19448186f, 1.66925605f, 1.0f);
    return e * p / q;
  }
  // (1 + erf(x / sqrt 2)) / 2, precise also in the lower tail, where 1 + erf would cancel.
  static Reg normal_cdf(Reg x) {
    const Reg tail = normal_tail(V::abs(x));
    return V::select(V::less(x, c(0.0f)), tail, c(1.0f) - tail);
  }

  static Reg erf(Reg x) {
    const Reg t = V::abs(x);
    const Reg tail = normal_tail(t * c(1.41421356f));
    const Reg large = V::copysign(c(1.0f) - (tail + tail), x);
    const Reg small = x * polynomial(x * x, c(7.85385768e-05f), -0.000801019251f, 0.00518832756f,
                                     -0.0268538119f, 0.112835851f, -0.376126258f, 1.12837917f);
    return V::select(V::less(t, c(1.0f)), small, large);
  }

  // maximum and minimum of two values: NaN if either is.
  static Reg maximum(Reg a, Reg b) { return V::select(V::is_nan(a), a, V::max(a, b)); }
  static Reg minimum(Reg a, Reg b) { return V::select(V::is_nan(a), a, V::min(a, b)); }

  template <Combination C>
  static Reg combine(Reg a, Reg b) {
    if constexpr (C == Combination::kAdd) return a + b;
    if constexpr (C == Combination::kSubtract) return a - b;
    if constexpr (C == Combination::kMultiply) return a * b;
    if constexpr (C == Combination::kDivide) return a / b;
    if constexpr (C == Combination::kMaximum) return maximum(a, b);
    if constexpr (C == Combination::kMinimum) return minimum(a, b);
    const Reg below = V::select(V::less(a, b), c(1.0f), c(0.0f));
    if constexpr (C == Combination::kLess) return below;
    const Reg above = V::select(V::less(b, a), c(1.0f), c(0.0f));
    if constexpr (C == Combination::kGreater) return above;
    const Reg ordered = V::select(V::is_nan(a), c(0.0f), V::select(V::is_nan(b), c(0.0f), c(1.0f)));
    if constexpr (C == Combination::kLessEqual) return ordered - above;
    if constexpr (C == Combination::kGreaterEqual) return ordered - below;
    if constexpr (C == Combination::kEqual) return ordered - below - above;
    if constexpr (C == Combination::kNotEqual) return c(1.0f) - (ordered - below - above);
  }

  // Parameters in registers.
  struct Parameters {
    Reg p[kParameters];
    explicit Parameters(const float* values) {
      for (std::size_t i = 0; i < kParameters; ++i) p[i] = V::set1(values[i]);
    }
  };

  template <Activation A>
  static Reg apply(Reg x, const Parameters& with) {
    if constexpr (A == Activation::kRelu) return V::max(c(0.0f), x);
    if constexpr (A == Activation::kLeakyRelu) return V::select(V::less(c(0.0f), x), x, x * with.p[0]);
    if constexpr (A == Activation::kGelu) return x * normal_cdf(x);
    if constexpr (A == Activation::kGeluTanh) {
      // (1 + tanh u) / 2 = 1 / (1 + e^-2u)
      const Reg u = c(0.7978845608f) * V::fma(c(0.044715f) * x * x, x, x);
      return x / (c(1.0f) + exp_for_sum(c(-2.0f) * u));
    }
    if constexpr (A == Activation::kSilu) return x / (c(1.0f) + exp_for_sum(-x));
    if constexpr (A == Activation::kTanh) return tanh(x);
    if constexpr (A == Activation::kSigmoid) return sigmoid(x);
    if constexpr (A == Activation::kElu) {
      return V::select(V::less(c(0.0f), x), x, with.p[0] * bounded_expm1(V::min(c(0.0f), x)));
    }
    if constexpr (A == Activation::kSoftplus) {
      const Reg scaled = x * with.p[0];
      return V::select(V::less(with.p[1], scaled), x, softplus(scaled) * with.p[2]);
    }
    if constexpr (A == Activation::kHardswish) {
      return x * V::min(c(6.0f), V::max(c(0.0f), x + c(3.0f))) / c(6.0f);
    }
    if constexpr (A == Activation::kClip) return V::min(with.p[1], V::max(with.p[0], x));
    if constexpr (A == Activation::kAbs) return V::abs(x);
    if constexpr (A == Activation::kExp) return exp(x);
    if constexpr (A == Activation::kLog) return log(x);
    if constexpr (A == Activation::kSqrt) return V::sqrt(x);
    if constexpr (A == Activation::kSin) return sin(x);
    if constexpr (A == Activation::kCos) return cos(x);
    if constexpr (A == Activation::kErf) return erf(x);
    if constexpr (A == Activation::kLog1p) return log1p(x);
    if constexpr (A == Activation::kExpm1) return expm1(x);
    if constexpr (A == Activation::kSign) {
      return V::select(V::less(c(0.0f), x), c(1.0f), V::select(V::less(x, c(0.0f)), c(-1.0f), c(0.0f)));
    }
    if constexpr (A == Activation::kMish) {
      // tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2)
      const Reg e = exp(V::min(c(20.0f), x));
      const Reg n = V::fma(e, e, e + e);
      return x * (n / (n + c(2.0f)));
    }
    return x;
  }
};

}  // namespace fused_mlp
