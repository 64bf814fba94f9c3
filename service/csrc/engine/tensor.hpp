// Tensors as they come over the wire: dtypes, conversion to and from float32, and the checks that keep
// anything invalid out of the queue. Both fronts use these checks, so their texts agree.
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

// Little-endian elements to and from float32. Bytes may be unaligned; the float side is aligned. Narrowing
// rounds to nearest even, overflow becomes infinity, subnormals are kept, NaN stays NaN.
void to_float32(DType dtype, const void* bytes, std::size_t count, float* out) noexcept;
void from_float32(DType dtype, const float* values, std::size_t count, void* out) noexcept;

// The rows of a valid tensor, or one line that says what was expected and what came.
struct TensorCheck {
  std::uint32_t rows = 0;
  std::string error;
  bool ok() const noexcept { return error.empty(); }
};

// [rows, width], or [width] for one row. Safe for any numbers a client may send.
TensorCheck check_tensor(std::span<const std::int64_t> shape, DType dtype, std::uint64_t byte_count,
                         std::size_t in_features, std::uint32_t max_request_rows);
// The same for numbers sent one by one (`values`, fp32_contents); an empty shape then means one row.
TensorCheck check_values(std::span<const std::int64_t> shape, std::uint64_t value_count,
                         std::size_t in_features, std::uint32_t max_request_rows);

}  // namespace fused_mlp
