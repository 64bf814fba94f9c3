// SPDX-License-Identifier: Apache-2.0
#include "codec/results.hpp"

#include <cstring>

namespace fused_mlp {
namespace {

void write_elements(const Results& results, size_t first, size_t count, DType dtype, uint8_t* out) noexcept {
  if (results.converted) {
    const size_t size = dtype_size(dtype);
    std::memcpy(out, static_cast<const uint8_t*>(results.data) + first * size, count * size);
  } else {
    from_float32(dtype, static_cast<const float*>(results.data) + first, count, out);
  }
}

}  // namespace

void write_head(const Results& results, size_t rows, const RouteEntry& entry, const Head& head, DType dtype,
                uint8_t* out) noexcept {
  if (head.width == entry.out_features) return write_elements(results, 0, rows * head.width, dtype, out);
  const size_t size = head.width * dtype_size(dtype);
  for (size_t row = 0; row < rows; ++row) {
    write_elements(results, row * entry.out_features + head.begin, head.width, dtype, out + row * size);
  }
}

}  // namespace fused_mlp
