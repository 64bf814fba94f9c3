// SPDX-License-Identifier: Apache-2.0
#include "front/rest/json_text.hpp"

#include <charconv>
#include <cmath>
#include <cstdint>

namespace fused_mlp::front {
namespace {

constexpr size_t kLongestNumber = 32;  // -2.2250738585072014e-308 and a comma

template <class Number>
char* write_number(Number value, char* at) {
  if (std::isfinite(value)) [[likely]]
    return std::to_chars(at, at + kLongestNumber, value).ptr;
  const std::string_view name = std::isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  return at + name.copy(at, name.size());
}

template <class Number>
void write_numbers(const Number* values, size_t count, ByteBuffer& out) {
  constexpr size_t kStep = 256;
  for (size_t first = 0; first < count; first += kStep) {
    const size_t last = std::min(count, first + kStep);
    auto* const begin = reinterpret_cast<char*>(out.extend((last - first) * kLongestNumber));
    char* at = begin;
    for (size_t i = first; i < last; ++i) {
      if (i != 0) *at++ = ',';
      at = write_number(values[i], at);
    }
    out.drop_back((last - first) * kLongestNumber - static_cast<size_t>(at - begin));
  }
}

}  // namespace

void write_json_text(std::string_view text, ByteBuffer& out) {
  constexpr char kHex[] = "0123456789abcdef";
  out.append("\"", 1);
  size_t done = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out.append(text.data() + done, i - done);
    done = i + 1;
    if (byte < 0x20) {
      const char escaped[] = {'\\', 'u', '0', '0', kHex[byte >> 4], kHex[byte & 15]};
      out.append(escaped, sizeof escaped);
    } else {
      const char escaped[] = {'\\', static_cast<char>(byte)};
      out.append(escaped, sizeof escaped);
    }
  }
  out.append(text.data() + done, text.size() - done);
  out.append("\"", 1);
}

void write_json_numbers(const float* values, size_t count, ByteBuffer& out) {
  write_numbers(values, count, out);
}

void write_json_numbers(const double* values, size_t count, ByteBuffer& out) {
  write_numbers(values, count, out);
}

}  // namespace fused_mlp::front
