#include "engine/tensor.hpp"

#include <algorithm>
#include <array>

#include "engine/status.hpp"

namespace fused_mlp {

namespace {

struct DTypeRow {
  std::string_view name;
  std::size_t size;
};
constexpr std::array<DTypeRow, 4> kDTypes = {{{"FP32", 4}, {"FP16", 2}, {"BF16", 2}, {"FP64", 8}}};

constexpr std::size_t kShownDimensions = 8;

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < std::min(shape.size(), kShownDimensions); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + (shape.size() > kShownDimensions ? ", ...]" : "]");
}

// Bounds every size before any multiplication, so that nothing overflows.
TensorCheck check_shape(std::span<const std::int64_t> shape, std::size_t in_features,
                        std::uint32_t max_request_rows) {
  const std::string width = std::to_string(in_features);
  const std::string received = shape_text(shape);
  const auto error = [](std::string text) { return TensorCheck{0, std::move(text)}; };
  if (shape.empty() || shape.size() > 2) {
    return error("shape: expected [rows, " + width + "] or [" + width + "], got " + received);
  }
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t size) { return size < 0; })) {
    return error("shape: expected sizes of at least 1, got " + received);
  }
  if (static_cast<std::uint64_t>(shape.back()) != in_features) {
    return error("shape: expected " + width + " columns, got " + std::to_string(shape.back()) + " in " +
                 received);
  }
  const std::int64_t rows = shape.size() == 2 ? shape[0] : 1;
  if (rows == 0) return error("shape: expected at least 1 row, got 0 in " + received);
  if (rows > std::int64_t{max_request_rows}) {
    return error("shape: expected at most " + std::to_string(max_request_rows) + " rows per request, got " +
                 std::to_string(rows) + "; send them in parts");
  }
  return TensorCheck{static_cast<std::uint32_t>(rows), {}};
}

}  // namespace

std::size_t dtype_size(DType dtype) noexcept { return kDTypes[static_cast<std::size_t>(dtype)].size; }
std::string_view dtype_name(DType dtype) noexcept { return kDTypes[static_cast<std::size_t>(dtype)].name; }

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_proto(std::int64_t number) noexcept {
  if (number == 0) return DType::fp32;  // DATA_TYPE_UNSPECIFIED
  if (number < 0 || number > static_cast<std::int64_t>(kDTypes.size())) return std::nullopt;
  return static_cast<DType>(number - 1);
}

std::string unknown_dtype_text(std::string_view name) {
  return "dtype: expected FP32, FP16, BF16 or FP64, got " + quote_name(name);
}

TensorCheck check_tensor(std::span<const std::int64_t> shape, DType dtype, std::uint64_t byte_count,
                         std::size_t in_features, std::uint32_t max_request_rows) {
  TensorCheck check = check_shape(shape, in_features, max_request_rows);
  if (!check.ok()) return check;
  const std::uint64_t expected = std::uint64_t{check.rows} * in_features * dtype_size(dtype);
  if (byte_count != expected) {
    check.error = "data: expected " + std::to_string(expected) + " bytes for " + shape_text(shape) + " " +
                  std::string(dtype_name(dtype)) + ", got " + std::to_string(byte_count);
  }
  return check;
}

TensorCheck check_values(std::span<const std::int64_t> shape, std::uint64_t value_count,
                         std::size_t in_features, std::uint32_t max_request_rows) {
  const std::array<std::int64_t, 1> one_row = {static_cast<std::int64_t>(in_features)};
  const bool unshaped = shape.empty();
  if (unshaped) shape = one_row;
  TensorCheck check = check_shape(shape, in_features, max_request_rows);
  if (!check.ok()) return check;
  const std::uint64_t expected = std::uint64_t{check.rows} * in_features;
  if (value_count != expected) {
    check.error = "values: expected " + std::to_string(expected) + " numbers for " +
                  (unshaped ? "one row" : shape_text(shape)) + ", got " + std::to_string(value_count);
  }
  return check;
}

}  // namespace fused_mlp
