// SPDX-License-Identifier: Apache-2.0
// Conversion between wire dtypes and float32 (declared in tensor.hpp), in plain integer arithmetic that the
// compiler can vectorise. Needs no F16C.
#include <bit>
#include <cstring>

#include "engine/run/tensor.hpp"

namespace fused_mlp {

static_assert(std::endian::native == std::endian::little, "tensor bytes are little-endian on the wire");

namespace {

template <class T>
T load(const unsigned char* bytes) noexcept {
  T value;
  std::memcpy(&value, bytes, sizeof value);  // bytes may be unaligned
  return value;
}

float widen_half(std::uint16_t half) noexcept {
  constexpr std::uint32_t kRebias = (127 - 15) << 23;
  constexpr std::uint32_t kExponent = 0x7C00u << 13;
  std::uint32_t bits = (half & 0x7FFFu) << 13;
  const std::uint32_t exponent = bits & kExponent;
  bits += kRebias;
  if (exponent == kExponent) {
    bits += kRebias;  // infinity and NaN keep the largest exponent
  } else if (exponent == 0) {
    // Zero and subnormals: add an implicit leading one; the subtraction removes it and normalises.
    constexpr std::uint32_t kSmallestNormal = 113u << 23;
    bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits + (1u << 23)) -
                                        std::bit_cast<float>(kSmallestNormal));
  }
  return std::bit_cast<float>(bits | (static_cast<std::uint32_t>(half & 0x8000u) << 16));
}

std::uint16_t narrow_half(float value) noexcept {
  constexpr std::uint32_t kInfinity = 255u << 23;
  constexpr std::uint32_t kOverflow = (127u + 16u) << 23;            // 2^16: above the largest half
  constexpr std::uint32_t kSmallestNormal = 113u << 23;              // 2^-14
  constexpr std::uint32_t kAlign = ((127u - 15u) + 13u + 1u) << 23;  // 0.5: its lowest bit has weight 2^-24
  const auto input = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = input & 0x80000000u;
  std::uint32_t bits = input ^ sign;
  std::uint32_t half = 0;
  if (bits >= kOverflow) {
    half = bits > kInfinity ? 0x7E00u : 0x7C00u;
  } else if (bits < kSmallestNormal) {
    // The addition shifts the mantissa into place and rounds to nearest even in hardware.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits) + std::bit_cast<float>(kAlign)) - kAlign;
  } else {
    const std::uint32_t odd = (bits >> 13) & 1u;
    // A carry into the exponent is correct, also where it gives infinity.
    bits += (static_cast<std::uint32_t>(15 - 127) << 23) + 0xFFFu + odd;
    half = bits >> 13;
  }
  return static_cast<std::uint16_t>(half | (sign >> 16));
}

float widen_bfloat(std::uint16_t value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

std::uint16_t narrow_bfloat(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  const std::uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
  return static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40u : rounded >> 16);
}

template <class Wire, float (*widen)(Wire) noexcept>
void widen_all(const void* bytes, std::size_t count, float* out) noexcept {
  const auto* source = static_cast<const unsigned char*>(bytes);
  for (std::size_t i = 0; i < count; ++i) out[i] = widen(load<Wire>(source + i * sizeof(Wire)));
}

template <class Wire, Wire (*narrow)(float) noexcept>
void narrow_all(const float* values, std::size_t count, void* out) noexcept {
  auto* target = static_cast<unsigned char*>(out);
  for (std::size_t i = 0; i < count; ++i) {
    const Wire value = narrow(values[i]);
    std::memcpy(target + i * sizeof(Wire), &value, sizeof(Wire));
  }
}

float from_double(double value) noexcept { return static_cast<float>(value); }
double to_double(float value) noexcept { return value; }

}  // namespace

void to_float32(DType dtype, const void* bytes, std::size_t count, float* out) noexcept {
  switch (dtype) {
    case DType::fp32:
      std::memcpy(out, bytes, count * sizeof(float));
      break;
    case DType::fp16:
      widen_all<std::uint16_t, widen_half>(bytes, count, out);
      break;
    case DType::bf16:
      widen_all<std::uint16_t, widen_bfloat>(bytes, count, out);
      break;
    case DType::fp64:
      widen_all<double, from_double>(bytes, count, out);
      break;
  }
}

void from_float32(DType dtype, const float* values, std::size_t count, void* out) noexcept {
  switch (dtype) {
    case DType::fp32:
      std::memcpy(out, values, count * sizeof(float));
      break;
    case DType::fp16:
      narrow_all<std::uint16_t, narrow_half>(values, count, out);
      break;
    case DType::bf16:
      narrow_all<std::uint16_t, narrow_bfloat>(values, count, out);
      break;
    case DType::fp64:
      narrow_all<double, to_double>(values, count, out);
      break;
  }
}

}  // namespace fused_mlp
