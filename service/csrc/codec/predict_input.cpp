// SPDX-License-Identifier: Apache-2.0
#include "codec/predict_input.hpp"

namespace fused_mlp {
namespace {

constexpr size_t kShownNames = 4;

std::string unknown_output(const char* field, const RouteEntry& entry, std::string_view name) {
  std::string expected;
  for (size_t i = 0; i < std::min(entry.heads.size(), kShownNames); ++i) {
    const bool last = i + 1 == entry.heads.size();
    expected += (i == 0 ? "" : last ? " or " : ", ") + quote_name(entry.heads[i].name);
  }
  if (entry.heads.size() > kShownNames) expected += ", ...";
  return field + (": expected " + expected) + ", got " + quote_name(name);
}

}  // namespace

TensorCheck PredictInput::check(const RouteEntry& entry) {
  if (std::string problem = choose_heads(entry); !problem.empty()) return {0, std::move(problem)};
  if (raw) {
    if (std::string problem = deduce_shape(entry); !problem.empty()) return {0, std::move(problem)};
  }
  const RowShape row{entry.in_features, entry.input_shape};
  TensorCheck check =
      typed ? check_values(shape(), data.size() / dtype_size(dtype), row, entry.max_request_rows)
            : check_tensor(shape(), dtype, data.size(), row, entry.max_request_rows);
  leading = check.leading;
  return check;
}

std::string PredictInput::choose_heads(const RouteEntry& entry) {
  head_count = 0;
  if (outputs.empty()) {
    const size_t count = all_outputs ? entry.heads.size() : 1;
    for (; head_count < count; ++head_count) heads[head_count] = static_cast<uint8_t>(head_count);
    return {};
  }
  uint64_t chosen = 0;  // one that is named twice is answered once
  for (const std::string_view name : outputs) {
    size_t index = 0;
    while (index < entry.heads.size() && entry.heads[index].name != name) ++index;
    if (index == entry.heads.size()) return unknown_output(outputs_field, entry, name);
    if ((chosen >> index & 1) != 0) continue;
    chosen |= uint64_t{1} << index;
    heads[head_count++] = static_cast<uint8_t>(index);
  }
  return {};
}

std::string PredictInput::deduce_shape(const RouteEntry& entry) {
  const size_t row_bytes = entry.in_features * dtype_size(dtype);
  if (data.empty() || data.size() % row_bytes != 0) {
    return "body: expected rows of " + std::to_string(row_bytes) + " bytes, " +
           std::to_string(entry.in_features) + " numbers of " + std::string(dtype_name(dtype)) + ", got " +
           std::to_string(data.size()) + " bytes";
  }
  dimension_count = 0;
  add_dimension(static_cast<int64_t>(data.size() / row_bytes));
  add_dimension(static_cast<int64_t>(entry.in_features));
  return {};
}

std::string PredictInput::name_arm(const char* field, std::string_view text) {
  if (text.empty()) return {};
  ArmName named;
  if (!parse_arm(text, named)) {
    return field + (": expected " + std::string(kArmExpected)) + ", got " + quote_name(text);
  }
  if ((named.names_version() && arm.names_version()) ||
      (named.variant != Variant::unspecified && arm.variant != Variant::unspecified)) {
    return field + (": expected it in place of version and variant, got " + quote_name(text)) +
           " beside them";
  }
  arm.complete(named);
  return {};
}

std::string_view PredictInput::short_id() const {
  constexpr size_t kMost = 80;
  return cut_text(request_id, kMost);
}

std::string PredictInput::unreadable(std::string_view message) {
  request_id = {};
  return "message: expected " + std::string(message) + ", got bytes that cannot be read as one";
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || text.size() - i < length) return false;
    uint32_t point = lead & (0x7fu >> length);
    for (size_t k = 1; k < length; ++k) {
      const auto byte = static_cast<uint8_t>(text[i + k]);
      if ((byte & 0xc0) != 0x80) return false;
      point = point << 6 | (byte & 0x3f);
    }
    const bool overlong = (length == 3 && point < 0x800) || (length == 4 && point < 0x10000);
    if (overlong || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) return false;
    i += length;
  }
  return true;
}

}  // namespace fused_mlp
