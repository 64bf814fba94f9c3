// SPDX-License-Identifier: Apache-2.0
// Writing JSON: strings, and numbers in as few digits as bring the same float back. Pure functions.
#pragma once

#include <cstddef>
#include <string_view>

#include "codec/byte_buffer.hpp"

namespace fused_mlp::front {

inline void append(ByteBuffer& out, std::string_view text) { out.append(text.data(), text.size()); }
// With quotes; `text` is UTF-8.
void write_json_text(std::string_view text, ByteBuffer& out);
// Separated by commas. JSON has no NaN and no infinities: they become "NaN", "Infinity" and "-Infinity", in
// quotes.
void write_json_numbers(const float* values, size_t count, ByteBuffer& out);
void write_json_numbers(const double* values, size_t count, ByteBuffer& out);

}  // namespace fused_mlp::front
