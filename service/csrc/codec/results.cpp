// SPDX-License-Identifier: Apache-2.0
#include "codec/results.hpp"

#include "codec/element_cursor.hpp"

namespace fused_mlp {

Answer::Answer(const PredictInput& input, const RouteEntry& entry, uint32_t rows, const Results& results)
    : input_(input), entry_(entry), results_(results), rows_(rows) {
  if (!input.ranking.wanted()) return;
  rank(rows);
  numbers_.push_back({"positions", positions_});
  if (input.ids_tensor == nullptr) return;
  std::vector<int64_t> all(rows);
  ElementCursor(*input.ids_tensor).read(all.data(), all.size());
  for (const int64_t position : positions_) ids_.push_back(all[static_cast<size_t>(position)]);
  numbers_.push_back({"ids", ids_});
}

// By the scores as they are answered: those that a narrower dtype makes equal are equal.
void Answer::rank(uint32_t rows) {
  const Head& head = entry_.heads[input_.rank_head];
  const size_t values = size_t{rows} * head.width;
  std::vector<float> converted;
  const float* scores = static_cast<const float*>(results_.data) + head.begin;
  size_t row_stride = entry_.out_features;
  if (input_.dtype != DType::fp32) {
    std::vector<uint8_t> bytes(values * dtype_size(input_.dtype));
    const size_t size = head.width * dtype_size(input_.dtype);
    for (size_t row = 0; row < rows; ++row) {
      results_.write(row * entry_.out_features + head.begin, head.width, input_.dtype,
                     bytes.data() + row * size);
    }
    converted.resize(values);
    to_float32(input_.dtype, bytes.data(), values, converted.data());
    scores = converted.data();
    row_stride = head.width;
  }
  columns_ = head.width > 1;
  if (!columns_) {
    append_best(input_.ranking, scores, rows, row_stride, positions_);
    rows_ = positions_.size();
    return;
  }
  for (size_t row = 0; row < rows; ++row) {
    append_best(input_.ranking, scores + row * row_stride, head.width, 1, positions_);
  }
  best_ = positions_.size() / rows;
}

void Answer::write(const Head& head, uint8_t* out) const noexcept {
  const size_t size = dtype_size(input_.dtype);
  if (columns_) {
    for (size_t i = 0; i < positions_.size(); ++i, out += size) {
      const size_t column = head.begin + static_cast<size_t>(positions_[i]);
      results_.write(i / best_ * entry_.out_features + column, 1, input_.dtype, out);
    }
    return;
  }
  const bool ranked = !numbers_.empty();
  if (!ranked && head.width == entry_.out_features)
    return results_.write(0, rows_ * head.width, input_.dtype, out);
  for (size_t i = 0; i < rows_; ++i, out += head.width * size) {
    const size_t row = ranked ? static_cast<size_t>(positions_[i]) : i;
    results_.write(row * entry_.out_features + head.begin, head.width, input_.dtype, out);
  }
}

}  // namespace fused_mlp
