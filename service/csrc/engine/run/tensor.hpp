// SPDX-License-Identifier: Apache-2.0
// Tensors as sent over the wire: dtypes, conversion to and from float32, and the checks that a request passes
// before it is queued. Both fronts use these checks, so their error texts agree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace fused_mlp {

enum class DType : std::uint8_t { fp32, fp16, bf16, fp64 };

std::size_t dtype_size(DType dtype) noexcept;       // bytes
std::string_view dtype_name(DType dtype) noexcept;  // "FP32": as in the Open Inference Protocol
std::optional<DType> dtype_from_name(std::string_view name) noexcept;
std::optional<DType> dtype_from_proto(std::int64_t number) noexcept;  // fused_mlp.v1.DataType
std::string unknown_dtype_text(std::string_view name);

// Converts between little-endian elements and float32. The bytes may be unaligned, the floats are aligned.
// Narrowing rounds to nearest even; overflow becomes infinity; subnormals and NaN are preserved.
void to_float32(DType dtype, const void* bytes, std::size_t count, float* out) noexcept;
void from_float32(DType dtype, const float* values, std::size_t count, void* out) noexcept;

// The most dimensions of a shape: the row's own, eight at most, and one for the rows.
constexpr std::size_t kMaxDimensions = 9;

// The row count of a valid tensor, or one line that says what was expected and what was received.
struct TensorCheck {
  std::uint32_t rows = 0;
  std::string error;
  std::size_t leading = 0;  // how many dimensions of the shape come before those of a row
  bool ok() const noexcept { return error.empty(); }
};

// One row of a model's input.
struct RowShape {
  std::size_t in_features = 0;
  std::span<const std::int64_t> own = {};  // [1, 28, 28] of a model that flattens it; empty: [in_features]
};

// Accepts shape [rows, in_features], or [in_features] for one row; the model's own shape for in_features, or
// if it has none, any whose sizes multiply to in_features; and more dimensions in front than one.
// Overflow-safe for any sizes.
TensorCheck check_tensor(std::span<const std::int64_t> shape, DType dtype, std::uint64_t byte_count,
                         const RowShape& row, std::uint32_t max_request_rows);
// The same for values sent as a repeated field (`values`, fp32_contents); an empty shape means one row.
TensorCheck check_values(std::span<const std::int64_t> shape, std::uint64_t value_count, const RowShape& row,
                         std::uint32_t max_request_rows);

}  // namespace fused_mlp
