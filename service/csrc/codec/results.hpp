// SPDX-License-Identifier: Apache-2.0
// What a kernel computed for one request, and how it goes into an answer: head by head, in the dtype of the
// request.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/predict_input.hpp"
#include "codec/wire.hpp"
#include "engine/router.hpp"

namespace fused_mlp {

// (rows, out_features), C-contiguous.
struct Results {
  const void* data = nullptr;
  bool converted = false;  // in the dtype of the request already; else float32
};

// Writes the columns of one head, rows * head.width elements.
void write_head(const Results& results, size_t rows, const RouteEntry& entry, const Head& head, DType dtype,
                uint8_t* out) noexcept;

// The shape of an answer: what is in front of a row, as it came, and the width of a head. One row that came
// without a dimension for rows gets one.
class AnswerShape {
 public:
  AnswerShape(const PredictInput& input, uint32_t rows) : input_(input), rows_(rows) {}
  size_t size(const Head& head) const {
    size_t size = varint_size(head.width);
    if (input_.leading <= 1) return size + varint_size(rows_);
    for (size_t i = 0; i < input_.leading; ++i) {
      size += varint_size(static_cast<uint64_t>(input_.dimensions[i]));
    }
    return size;
  }
  void write(const Head& head, Writer& w) const {
    if (input_.leading <= 1) {
      w.varint(rows_);
    } else {
      for (size_t i = 0; i < input_.leading; ++i) w.varint(static_cast<uint64_t>(input_.dimensions[i]));
    }
    w.varint(head.width);
  }

 private:
  const PredictInput& input_;
  const uint32_t rows_;
};

}  // namespace fused_mlp
