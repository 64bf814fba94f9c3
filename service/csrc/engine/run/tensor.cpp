// SPDX-License-Identifier: Apache-2.0
#include "engine/run/tensor.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

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

std::string expected_text(const RowShape& row) {
  const std::string width = std::to_string(row.in_features);
  if (row.own.empty()) return "[rows, " + width + "] or [" + width + "]";
  return "[rows, " + shape_text(row.own).substr(1) + " or [rows, " + width + "]";
}

// How many dimensions at the end of the shape hold in_features numbers together, with at least one for rows
// left; 0: none do. [2, 28, 28] is two rows of a model of 784 inputs.
std::size_t flattened_dimensions(std::span<const std::int64_t> shape, std::uint64_t in_features) {
  std::uint64_t product = 1;
  for (std::size_t count = 1; count < shape.size(); ++count) {
    const auto size = static_cast<std::uint64_t>(shape[shape.size() - count]);
    if (size == 0 || size > in_features / product) return 0;
    product *= size;
    if (product == in_features) return count;
  }
  return 0;
}

// How many dimensions at the end of the shape are one row; 0: they are none.
std::size_t row_dimensions(std::span<const std::int64_t> shape, const RowShape& row) {
  const std::span own = row.own;
  if (!own.empty() && shape.size() >= own.size() && std::equal(own.rbegin(), own.rend(), shape.rbegin())) {
    return own.size();
  }
  if (static_cast<std::uint64_t>(shape.back()) == row.in_features) return 1;
  // A model with a shape of its own takes no other: [rows, 28, 28, 1] are the pixels in another order.
  return own.empty() ? flattened_dimensions(shape, row.in_features) : 0;
}

// Bounds every size before any multiplication, so that nothing overflows.
TensorCheck check_shape(std::span<const std::int64_t> shape, const RowShape& row,
                        std::uint32_t max_request_rows) {
  const auto error = [](std::string text) { return TensorCheck{0, std::move(text)}; };
  if (shape.empty() || shape.size() > kMaxDimensions) {
    return error("shape: expected " + expected_text(row) + ", got " + shape_text(shape));
  }
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t size) { return size < 0; })) {
    return error("shape: expected sizes of at least 1, got " + shape_text(shape));
  }
  const std::size_t own = row_dimensions(shape, row);
  if (own == 0 && row.own.empty() && shape.size() <= 2) {
    return error("shape: expected " + std::to_string(row.in_features) + " columns, got " +
                 std::to_string(shape.back()) + " in " + shape_text(shape));
  }
  if (own == 0) return error("shape: expected " + expected_text(row) + ", got " + shape_text(shape));
  const std::span leading = shape.first(shape.size() - own);
  if (std::find(leading.begin(), leading.end(), 0) != leading.end()) {
    return error("shape: expected at least 1 row, got 0 in " + shape_text(shape));
  }
  std::uint64_t rows = 1;
  for (const std::int64_t size : leading) {
    const auto factor = static_cast<std::uint64_t>(size);
    rows = factor > INT64_MAX / rows ? INT64_MAX : rows * factor;
  }
  if (rows > max_request_rows) {
    return error("shape: expected at most " + std::to_string(max_request_rows) + " rows per request, got " +
                 (rows == INT64_MAX && leading.size() > 1 ? "more" : std::to_string(rows)) +
                 "; send them in parts");
  }
  return TensorCheck{static_cast<std::uint32_t>(rows), {}, leading.size()};
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
                         const RowShape& row, std::uint32_t max_request_rows) {
  TensorCheck check = check_shape(shape, row, max_request_rows);
  if (!check.ok()) return check;
  const std::uint64_t expected = std::uint64_t{check.rows} * row.in_features * dtype_size(dtype);
  if (byte_count != expected) {
    check.error = "data: expected " + std::to_string(expected) + " bytes for " + shape_text(shape) + " " +
                  std::string(dtype_name(dtype)) + ", got " + std::to_string(byte_count);
  }
  return check;
}

TensorCheck check_values(std::span<const std::int64_t> shape, std::uint64_t value_count, const RowShape& row,
                         std::uint32_t max_request_rows) {
  const std::array<std::int64_t, 1> one_row = {static_cast<std::int64_t>(row.in_features)};
  const bool unshaped = shape.empty();
  if (unshaped) shape = one_row;
  TensorCheck check = check_shape(shape, row, max_request_rows);
  if (!check.ok()) return check;
  const std::uint64_t expected = std::uint64_t{check.rows} * row.in_features;
  if (value_count != expected) {
    check.error = "values: expected " + std::to_string(expected) + " numbers for " +
                  (unshaped ? "one row" : shape_text(shape)) + ", got " + std::to_string(value_count);
  }
  return check;
}

}  // namespace fused_mlp
