// The activations and their names. activation_math.hpp computes them.
#pragma once

#include <array>
#include <string_view>

namespace fused_mlp {

enum class Activation : unsigned char {
  kIdentity,
  kRelu,
  kLeakyRelu,
  kGelu,
  kGeluTanh,
  kSilu,
  kTanh,
  kSigmoid,
  kElu,
  kSoftplus,
  kHardswish,
  kRelu6,
  kMish,
  // These two depend on the whole row and are only allowed after the last layer.
  kSoftmax,
  kLogSoftmax,
};

inline constexpr int kElementwiseActivations = static_cast<int>(Activation::kSoftmax);

inline constexpr std::array<std::string_view, 15> kActivationNames = {
    "identity", "relu",     "leaky_relu", "gelu",  "gelu_tanh", "silu",    "tanh",       "sigmoid",
    "elu",      "softplus", "hardswish",  "relu6", "mish",      "softmax", "log_softmax"};

constexpr bool is_elementwise(Activation a) { return static_cast<int>(a) < kElementwiseActivations; }

}  // namespace fused_mlp
