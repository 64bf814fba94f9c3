// SPDX-License-Identifier: Apache-2.0
// Words of HTTP that may come in any case. Pure functions.
#pragma once

#include <algorithm>
#include <string_view>

namespace fused_mlp::front {

constexpr char lower_case(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; }

// `token` is in lower case.
inline bool is_token(std::string_view text, std::string_view token) {
  return std::equal(text.begin(), text.end(), token.begin(), token.end(),
                    [](char c, char expected) { return lower_case(c) == expected; });
}

}  // namespace fused_mlp::front
