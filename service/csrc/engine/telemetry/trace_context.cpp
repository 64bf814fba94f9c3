// SPDX-License-Identifier: Apache-2.0
#include "engine/telemetry/trace_context.hpp"

#include <optional>

namespace fused_mlp {
namespace {

constexpr char kHex[] = "0123456789abcdef";

// Lower case only, as the specification demands.
std::optional<std::uint64_t> hex_value(std::string_view digits) noexcept {
  std::uint64_t value = 0;
  for (const char c : digits) {
    if (c >= '0' && c <= '9') {
      value = value << 4 | static_cast<std::uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      value = value << 4 | static_cast<std::uint64_t>(c - 'a' + 10);
    } else {
      return std::nullopt;
    }
  }
  return value;
}

void append_hex(std::string& text, std::uint64_t value) {
  for (int shift = 60; shift >= 0; shift -= 4) text.push_back(kHex[value >> shift & 15]);
}

}  // namespace

// version "-" trace "-" span "-" flags; versions after 00 may add fields.
TraceContext parse_traceparent(std::string_view header) noexcept {
  constexpr std::size_t kSize = 55;
  if (header.size() < kSize || header[2] != '-' || header[35] != '-' || header[52] != '-') return {};
  const auto version = hex_value(header.substr(0, 2));
  if (!version || *version == 0xff) return {};
  if (header.size() > kSize && (*version == 0 || header[kSize] != '-')) return {};
  const auto high = hex_value(header.substr(3, 16)), low = hex_value(header.substr(19, 16));
  const auto span = hex_value(header.substr(36, 16)), flags = hex_value(header.substr(53, 2));
  if (!high || !low || !span || !flags || (*high | *low) == 0 || *span == 0) return {};
  return {*high, *low, *span, (*flags & 1) != 0};
}

std::string trace_hex(const TraceContext& context) {
  std::string text;
  text.reserve(32);
  append_hex(text, context.trace_high);
  append_hex(text, context.trace_low);
  return text;
}

std::string span_hex(std::uint64_t span) {
  std::string text;
  text.reserve(16);
  append_hex(text, span);
  return text;
}

}  // namespace fused_mlp
