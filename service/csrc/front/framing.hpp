// The five bytes before every gRPC message.
#pragma once

#include <cstddef>
#include <cstdint>

#include "front/buffer.hpp"

namespace fused_mlp::front {

inline constexpr size_t kPrefixBytes = 5;

// Appends the prefix and room for the message; returns where the message goes.
inline uint8_t* begin_message(Buffer& out, size_t size) {
  uint8_t* at = out.extend(kPrefixBytes + size);
  at[0] = 0;  // not compressed
  at[1] = static_cast<uint8_t>(size >> 24);
  at[2] = static_cast<uint8_t>(size >> 16);
  at[3] = static_cast<uint8_t>(size >> 8);
  at[4] = static_cast<uint8_t>(size);
  return at + kPrefixBytes;
}

}  // namespace fused_mlp::front
