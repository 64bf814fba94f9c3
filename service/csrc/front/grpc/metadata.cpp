// SPDX-License-Identifier: Apache-2.0
#include "front/grpc/metadata.hpp"

#include <array>

namespace fused_mlp::front {
namespace {

constexpr char kBase64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<int8_t, 256> base64_values() {
  std::array<int8_t, 256> values{};
  for (auto& value : values) value = -1;
  for (int i = 0; i < 64; ++i) values[static_cast<uint8_t>(kBase64[i])] = static_cast<int8_t>(i);
  return values;
}

constexpr std::array<int8_t, 256> kBase64Value = base64_values();

}  // namespace

std::optional<int64_t> parse_timeout(std::string_view text) {
  if (text.size() < 2 || text.size() > 9) return std::nullopt;
  int64_t value = 0;
  for (const char c : text.substr(0, text.size() - 1)) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  int64_t unit = 0;
  switch (text.back()) {
    case 'H':
      unit = 3'600'000'000'000;
      break;
    case 'M':
      unit = 60'000'000'000;
      break;
    case 'S':
      unit = 1'000'000'000;
      break;
    case 'm':
      unit = 1'000'000;
      break;
    case 'u':
      unit = 1'000;
      break;
    case 'n':
      unit = 1;
      break;
    default:
      return std::nullopt;
  }
  constexpr int64_t kMost = int64_t{1} << 61;  // 73 years; 99999999 hours would not fit
  return value > kMost / unit ? kMost : value * unit;
}

std::string percent_encode(std::string_view text) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x20 && byte <= 0x7e && c != '%') {
      out.push_back(c);
    } else {
      out.push_back('%');
      out.push_back(kHex[byte >> 4]);
      out.push_back(kHex[byte & 15]);
    }
  }
  return out;
}

std::string base64_encode(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() * 4 + 2) / 3);
  uint32_t bits = 0;
  int held = 0;
  for (const char c : bytes) {
    bits = bits << 8 | static_cast<uint8_t>(c);
    held += 8;
    while (held >= 6) {
      held -= 6;
      out.push_back(kBase64[bits >> held & 63]);
    }
  }
  if (held > 0) out.push_back(kBase64[bits << (6 - held) & 63]);
  return out;
}

std::optional<std::string> base64_decode(std::string_view text) {
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  if (text.size() % 4 == 1) return std::nullopt;
  std::string out;
  out.reserve(text.size() * 3 / 4);
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const int8_t value = kBase64Value[static_cast<uint8_t>(c)];
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    held += 6;
    if (held >= 8) {
      held -= 8;
      out.push_back(static_cast<char>(bits >> held & 255));
    }
  }
  return out;
}

}  // namespace fused_mlp::front
