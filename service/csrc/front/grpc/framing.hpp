// SPDX-License-Identifier: Apache-2.0
// The five bytes before every gRPC message.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/byte_buffer.hpp"

namespace fused_mlp::front {

inline constexpr size_t kPrefixBytes = 5;

inline void write_prefix(uint8_t* at, size_t message_size) {
  at[0] = 0;  // not compressed
  at[1] = static_cast<uint8_t>(message_size >> 24);
  at[2] = static_cast<uint8_t>(message_size >> 16);
  at[3] = static_cast<uint8_t>(message_size >> 8);
  at[4] = static_cast<uint8_t>(message_size);
}

// Appends the prefix and room for the message; returns where the message goes.
inline uint8_t* begin_message(ByteBuffer& out, size_t size) {
  uint8_t* at = out.extend(kPrefixBytes + size);
  write_prefix(at, size);
  return at + kPrefixBytes;
}

// Puts the prefix before the message that `append_message` appends to `out`.
template <class AppendMessage>
void append_framed(ByteBuffer& out, AppendMessage append_message) {
  const size_t start = out.size();
  out.extend(kPrefixBytes);
  append_message();
  write_prefix(out.data() + start, out.size() - start - kPrefixBytes);
}

}  // namespace fused_mlp::front
