// SPDX-License-Identifier: Apache-2.0
// A named tensor of a request as it came: views into the message that holds it, no copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/run/tensor.hpp"

namespace fused_mlp {

// The type of its elements. The first ones are those of DType, in its order.
enum class Element : uint8_t {
  fp32,
  fp16,
  bf16,
  fp64,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  boolean,
  bytes,
  unknown
};

constexpr bool is_float(Element element) { return element <= Element::fp64; }
constexpr bool is_whole(Element element) { return element >= Element::int8 && element <= Element::boolean; }
size_t element_size(Element element) noexcept;              // 0: bytes, of any length
std::string_view element_name(Element element) noexcept;    // "INT64": as in the Open Inference Protocol
Element element_from_name(std::string_view name) noexcept;  // unknown: there is no such name
Element element_from_proto(int64_t number) noexcept;        // fused_mlp.v1.DataType

struct WireTensor {
  std::string_view name;
  std::string_view datatype;  // as it came, for errors
  Element element = Element::fp32;
  // Raw little-endian elements, each string with its length in four bytes in front; or a protobuf message
  // that has them in the repeated field `typed_field`.
  std::string_view data;
  uint8_t typed_field = 0;
  uint8_t dimension_count = 0;
  uint16_t input = 0;   // which of the model's it is; known once it was checked
  bool shared = false;  // by all rows of the request: it has one row; known then too
  int64_t dimensions[kMaxDimensions + 1];

  std::span<const int64_t> shape() const { return {dimensions, dimension_count}; }
  void add_dimension(int64_t size) {
    if (dimension_count <= kMaxDimensions) dimensions[dimension_count++] = size;
  }
};
constexpr size_t kMaxInputs = 1024;
constexpr std::string_view kOnlyInput = "input";  // of a model that names none

}  // namespace fused_mlp
