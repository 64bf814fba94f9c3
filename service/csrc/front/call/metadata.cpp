// SPDX-License-Identifier: Apache-2.0
#include "front/call/metadata.hpp"

#include <openssl/evp.h>

namespace fused_mlp::front {
namespace {

constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::optional<int64_t> parse_timeout(std::string_view text) {
  constexpr std::string_view kUnits = "numSMH";
  constexpr int64_t kUnit_ns[] = {1, 1'000, 1'000'000, 1'000'000'000, 60'000'000'000, 3'600'000'000'000};
  constexpr int64_t kMost = int64_t{1} << 61;  // 73 years; 99999999 hours would not fit
  if (text.size() < 2 || text.size() > 9) return std::nullopt;
  int64_t value = 0;
  for (const char c : text.substr(0, text.size() - 1)) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  const size_t place = kUnits.find(text.back());
  if (place == kUnits.npos) return std::nullopt;
  const int64_t unit = kUnit_ns[place];
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
  std::string out((bytes.size() + 2) / 3 * 4 + 1, '\0');  // with the zero that OpenSSL appends
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  out.resize(static_cast<size_t>(size));
  while (out.ends_with('=')) out.pop_back();
  return out;
}

std::optional<std::string> base64_decode(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  // OpenSSL would pass over white space.
  if (text.size() % 4 == 1 || text.find_first_not_of(kBase64) != text.npos) return std::nullopt;
  const size_t padding = (4 - text.size() % 4) % 4;
  std::string padded(text);
  padded.append(padding, '=');
  std::string out(padded.size() / 4 * 3, '\0');
  EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                  reinterpret_cast<const unsigned char*>(padded.data()), static_cast<int>(padded.size()));
  out.resize(out.size() - padding);
  return out;
}

}  // namespace fused_mlp::front
