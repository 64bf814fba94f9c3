// Activations of one register, for every instruction set. No tables and no branches: all lanes do the same
// operations, so that a result never depends on its neighbours. tests/activation_test.cpp measures the
// errors. NaN and infinities behave as in eager PyTorch: min and max are ordered so that NaN passes through.
#pragma once

#include "tile/activation.hpp"

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
  static Reg expm1(Reg x) {
    x = V::max(c(-20.0f), x);
    Reg biased;
    const Reg m = reduce(x, biased);
    const Reg scale = V::pow2(biased);
    return V::fma(m, scale, scale - c(1.0f));
  }

  // For 0 <= t <= 1: 2 atanh(t / (2 + t)).
  static Reg log1p(Reg t) {
    const Reg s = t / (c(2.0f) + t);
    const Reg z = s * s;
    const Reg q = polynomial(z, c(0.1195868354f), 0.1076796528f, 0.1430310277f, 0.1999965102f, 0.3333333509f);
    const Reg twice = s + s;
    return V::fma(twice * z, q, twice);
  }

  static Reg sigmoid(Reg x) { return c(1.0f) / (c(1.0f) + exp_for_sum(-x)); }

  static Reg tanh(Reg x) {
    const Reg t = V::abs(x);
    const Reg e = expm1(V::min(c(20.0f), t + t));
    return V::copysign(e / (e + c(2.0f)), x);
  }

  static Reg softplus(Reg x) { return V::max(c(0.0f), x) + log1p(exp(-V::abs(x))); }

  // (1 + erf(x / sqrt 2)) / 2, with full relative precision also in the lower tail, where 1 + erf would
  // cancel: e^(-t^2 / 2) P(t) / Q(t) with t = |x|, zero for t >= 13.27.
  static Reg normal_cdf(Reg x) {
    const Reg t = V::min(c(13.27f), V::abs(x));
    const Reg minus_half = c(-0.5f) * t;
    const Reg biased = V::fma(c(-0.5f * kLog2E) * t, t, c(kMagic));
    const Reg n = biased - c(kMagic);
    const Reg r = V::fma(minus_half, t, n * c(kMinusLn2High));  // FMA: the square is not rounded
    const Reg m = small_expm1(V::fma(n, c(kMinusLn2Low), r));
    const Reg scale = V::pow2(biased);
    const Reg e = V::fma(m, scale, scale);
    const Reg p = polynomial(t, c(0.00402015921f), 0.0399839724f, 0.181306182f, 0.435685565f, 0.5f);
    const Reg q = polynomial(t, c(0.0100769015f), 0.100232337f, 0.464378806f, 1.19448186f, 1.66925605f, 1.0f);
    const Reg tail = e * p / q;
    return V::select(V::less(x, c(0.0f)), tail, c(1.0f) - tail);
  }

  template <Activation A>
  static Reg apply(Reg x, Reg slope) {
    if constexpr (A == Activation::kRelu) return V::max(c(0.0f), x);
    if constexpr (A == Activation::kLeakyRelu) return V::select(V::less(c(0.0f), x), x, x * slope);
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
      return V::select(V::less(c(0.0f), x), x, expm1(V::min(c(0.0f), x)));
    }
    if constexpr (A == Activation::kSoftplus) return softplus(x);
    if constexpr (A == Activation::kHardswish) {
      return x * V::min(c(6.0f), V::max(c(0.0f), x + c(3.0f))) / c(6.0f);
    }
    if constexpr (A == Activation::kRelu6) return V::min(c(6.0f), V::max(c(0.0f), x));
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
