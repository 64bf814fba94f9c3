// SPDX-License-Identifier: Apache-2.0
// Functions of one value, and of two, as data: what an epilogue or a step applies to every element.
// activation_math.hpp computes them, formula.hpp those that are composed of several.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fused_mlp {

enum class Activation : unsigned char {
  kIdentity,
  kRelu,
  kLeakyRelu,  // slope
  kGelu,
  kGeluTanh,
  kSilu,
  kTanh,
  kSigmoid,
  kElu,       // alpha
  kSoftplus,  // beta, threshold, 1 / beta
  kHardswish,
  kMish,
  kClip,  // lowest, highest
  kAbs,
  kExp,
  kLog,
  kSqrt,
  kSin,
  kCos,
  kErf,
  kLog1p,
  kExpm1,
  kSign,     // of NaN 0
  kFormula,  // several of the above: Function::steps
};

inline constexpr int kPlainActivations = static_cast<int>(Activation::kFormula);

inline constexpr std::array<std::string_view, kPlainActivations> kActivationNames = {
    "identity", "relu",     "leaky_relu", "gelu", "gelu_tanh", "silu",  "tanh", "sigmoid",
    "elu",      "softplus", "hardswish",  "mish", "clip",      "abs",   "exp",  "log",
    "sqrt",     "sin",      "cos",        "erf",  "log1p",     "expm1", "sign"};

enum class Combination : unsigned char {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kMaximum,
  kMinimum,
  kLess,  // 1 where it holds, else 0; NaN equals nothing
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kEqual,
  kNotEqual,
};

inline constexpr int kCombinations = 12;
inline constexpr std::array<std::string_view, kCombinations> kCombinationNames = {
    "add",  "subtract",   "multiply", "divide",        "maximum", "minimum",
    "less", "less_equal", "greater",  "greater_equal", "equal",   "not_equal"};

inline constexpr std::size_t kParameters = 3;

// One operation of a formula, on registers that hold a chunk of values each. Register 0 is x at the start and
// the result at the end.
struct FormulaStep {
  static constexpr std::int16_t kConstant = -1;  // an operand that is `constant`
  bool binary;
  Activation activation;    // if not binary: to = activation(a)
  Combination combination;  // if binary: to = a combination b
  std::int16_t a;
  std::int16_t b;
  std::int16_t to;
  float constant;
  float parameters[kParameters];
};

struct Function {
  Activation activation = Activation::kIdentity;
  float parameters[kParameters] = {};
  const FormulaStep* steps = nullptr;  // for kFormula
  std::size_t count = 0;

  bool is_identity() const { return activation == Activation::kIdentity; }
};

// The registers that a formula may use.
inline constexpr std::int16_t kFormulaRegisters = 66;

}  // namespace fused_mlp
