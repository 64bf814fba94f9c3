// SPDX-License-Identifier: Apache-2.0
// The text rules of gRPC and HTTP: timeouts, percent-encoding, base64 of binary metadata, case. Pure
// functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fused_mlp::front {

// "100m" -> nanoseconds. At most 8 digits and one of H M S m u n; nothing else.
std::optional<int64_t> parse_timeout(std::string_view text);

// For grpc-message: printable ASCII but '%' stays, every other byte becomes %XX.
std::string percent_encode(std::string_view text);

// Binary metadata (names that end in "-bin"): sent without padding, accepted with or without.
std::string base64_encode(std::string_view bytes);
std::optional<std::string> base64_decode(std::string_view text);

constexpr char lower_case(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; }

// Compares without case; `token` is in lower case.
inline bool is_token(std::string_view text, std::string_view token) {
  return std::equal(text.begin(), text.end(), token.begin(), token.end(),
                    [](char c, char expected) { return lower_case(c) == expected; });
}

inline bool is_binary_name(std::string_view name) { return name.ends_with("-bin"); }

}  // namespace fused_mlp::front
