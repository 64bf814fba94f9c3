// SPDX-License-Identifier: Apache-2.0
// A decoded prediction request of either API: views into the message that holds it, no copies.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codec/byte_buffer.hpp"
#include "engine/router.hpp"
#include "engine/tensor.hpp"

namespace fused_mlp {

struct PredictInput {
  std::string_view model, request_id;
  ArmName arm;  // as far as it names one
  // What it asks for by name, as views; the API says what no name means.
  std::vector<std::string_view> outputs;
  const char* outputs_field = "output";  // that names them, for error texts
  bool all_outputs = false;
  int64_t dimensions[kMostDimensions + 1];  // one more than any valid shape has; the rest is not kept
  size_t dimension_count = 0;
  size_t leading = 0;  // of which are in front of a row; known once it was checked
  DType dtype = DType::fp32;
  std::string_view data;         // raw little-endian elements, any alignment
  size_t head_bytes = SIZE_MAX;  // of the message, in front of binary tensors; SIZE_MAX: all of it
  uint64_t binary_outputs = 0;   // those of `outputs` that are wanted as bytes, where the API asks for that
  bool binary_output = false;    // so are all where none is named
  bool raw = false;              // without a shape: the size of `data` says how many rows it has
  bool typed = false;            // from a repeated field of numbers, not from raw bytes
  ByteBuffer scattered;          // holds them when they came in several pieces
  // The requested outputs of the model, in the order of the answer. Set when the request is validated.
  uint8_t heads[kMostHeads];
  size_t head_count = 0;

  std::span<const int64_t> shape() const { return {dimensions, dimension_count}; }
  void add_dimension(int64_t size) {
    if (dimension_count <= kMostDimensions) dimensions[dimension_count++] = size;
  }
  // Whether the outputs that it names and its tensor fit the model.
  TensorCheck check(const RouteEntry& entry);
  // Names an arm by its text, unless it names a version or variant already. What is wrong; empty: nothing.
  std::string name_arm(const char* field, std::string_view text);
  // The caller's id, fit to be logged and sent back: at most 80 bytes, never cut inside a character.
  std::string_view short_id() const;
  // The error for bytes that are not `message` ("a fused_mlp.v1.PredictRequest"). Drops the id: it may not be
  // UTF-8.
  std::string unreadable(std::string_view message);
  void reset() {
    model = request_id = data = {};
    outputs.clear();
    outputs_field = "output";
    all_outputs = false;
    leading = head_count = 0;
    arm = {};
    dimension_count = 0;
    dtype = DType::fp32;
    head_bytes = SIZE_MAX;
    binary_outputs = 0;
    binary_output = raw = false;
    typed = false;
    scattered.reset(1u << 10);
  }

 private:
  std::string choose_heads(const RouteEntry& entry);
  std::string deduce_shape(const RouteEntry& entry);
};

// The numbers of a packed or unpacked repeated field, in one piece where they came in one.
class PackedNumbers {
 public:
  explicit PackedNumbers(ByteBuffer& scattered) : scattered_(scattered) {}
  // A piece that stays where it is.
  void add(std::string_view piece) {
    if (piece.empty()) return;
    if (whole_.empty()) {
      whole_ = piece;
    } else {
      add_copy(piece.data(), piece.size());
    }
  }
  void add_copy(const void* piece, size_t size) {
    if (scattered_.empty()) scattered_.append(whole_.data(), whole_.size());
    scattered_.append(piece, size);
    whole_ = {reinterpret_cast<const char*>(scattered_.data()), scattered_.size()};
  }
  std::string_view bytes() const { return whole_; }

 private:
  ByteBuffer& scattered_;
  std::string_view whole_;
};

// Strings of protobuf are UTF-8; anything else is refused and never sent back.
bool is_utf8(std::string_view text);

}  // namespace fused_mlp
