// SPDX-License-Identifier: Apache-2.0
// The output of a kernel for one request, and its way into an answer: head by head, in the dtype of the
// request; all rows, or the best of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "codec/predict_input.hpp"
#include "codec/wire.hpp"
#include "engine/route/router.hpp"

namespace fused_mlp {

// (rows, out_features), C-contiguous.
struct Results {
  const void* data = nullptr;
  bool converted = false;  // in the dtype of the request already; else float32

  void write(size_t first, size_t count, DType dtype, uint8_t* out) const noexcept {
    if (!converted) return from_float32(dtype, static_cast<const float*>(data) + first, count, out);
    const size_t size = dtype_size(dtype);
    std::memcpy(out, static_cast<const uint8_t*>(data) + first * size, count * size);
  }
};

class Answer {
 public:
  // Whole numbers beside the heads: [best], or [rows, best] where the columns of each row are ranked.
  struct Numbers {
    std::string_view name;
    std::span<const int64_t> values;
  };

  // Ranks the results, if the request wants that.
  Answer(const PredictInput& input, const RouteEntry& entry, uint32_t rows, const Results& results);

  size_t rows() const { return rows_; }
  size_t width(const Head& head) const { return columns_ ? best_ : head.width; }
  size_t values(const Head& head) const { return rows_ * width(head); }
  // Writes the values of a head.
  void write(const Head& head, uint8_t* out) const noexcept;
  // Calls action(size) for each dimension of a head's shape: what is in front of a row, as it came, and the
  // width. One row that came without a dimension for rows gets one.
  template <class Action>
  void each_dimension(const Head& head, Action action) const {
    if (input_.leading <= 1 || !numbers_.empty()) {
      action(rows_);
    } else {
      for (size_t i = 0; i < input_.leading; ++i) action(static_cast<uint64_t>(input_.dimensions[i]));
    }
    action(width(head));
  }
  // Adds the packed field of a shape.
  template <class Shaped>
  void add_shape(Writer& writer, ByteBuffer& out, unsigned field, const Shaped& shaped) const {
    const Writer sizes(writer, field);
    each_dimension(shaped, [&](uint64_t size) { protozero::add_varint_to_buffer(&out, size); });
  }
  // More bytes than a message with all heads takes beside its texts.
  size_t max_bytes() const {
    size_t bytes = 128;
    for (size_t i = 0; i < input_.head_count; ++i) {
      const Head& head = entry_.heads[input_.heads[i]];
      bytes += 48 + head.name.size() + values(head) * dtype_size(input_.dtype);
    }
    for (const Numbers& each : numbers_) bytes += 48 + 10 * each.values.size();
    return bytes;
  }
  // Positions, and ids if they were asked for.
  std::span<const Numbers> numbers() const { return numbers_; }
  template <class Action>
  void each_dimension(const Numbers& numbers, Action action) const {
    if (columns_) action(rows_);
    action(columns_ ? best_ : numbers.values.size());
  }

 private:
  void rank(uint32_t rows);

  const PredictInput& input_;
  const RouteEntry& entry_;
  const Results& results_;
  size_t rows_;
  size_t best_ = 0;       // of each row, where columns are ranked
  bool columns_ = false;  // are ranked, not rows
  std::vector<int64_t> positions_, ids_;
  std::vector<Numbers> numbers_;
};

}  // namespace fused_mlp
