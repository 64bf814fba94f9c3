// SPDX-License-Identifier: Apache-2.0
// The text rules of gRPC over HTTP/2: timeouts, percent-encoding, base64 of binary metadata. Pure functions.
#pragma once

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

inline bool is_binary_name(std::string_view name) { return name.ends_with("-bin"); }

}  // namespace fused_mlp::front
