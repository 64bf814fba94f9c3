// The activations of the spec by name. Knows nothing of how they are computed (activation_math.hpp does).
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
  // The two below look at a whole row, so they only ever follow the last layer.
  kSoftmax,
  kLogSoftmax,
};

inline constexpr int kElementwiseActivations = static_cast<int>(Activation::kSoftmax);

inline constexpr std::array<std::string_view, 15> kActivationNames = {
    "identity", "relu",     "leaky_relu", "gelu",  "gelu_tanh", "silu",    "tanh",       "sigmoid",
    "elu",      "softplus", "hardswish",  "relu6", "mish",      "softmax", "log_softmax"};

constexpr bool is_elementwise(Activation a) { return static_cast<int>(a) < kElementwiseActivations; }

}  // namespace fused_mlp
