// SPDX-License-Identifier: Apache-2.0
// Unpacking of gzip messages, with the output bounded: a few KiB can unpack to gigabytes. It goes in steps,
// because a message of a few KiB on the wire can also take tens of milliseconds.
#pragma once

#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "codec/byte_buffer.hpp"

namespace fused_mlp::front {

class Gunzip {
 public:
  static constexpr size_t kStepBytes = 64u << 10;  // of output: some 50 to 100 us
  // Bounds the input of a step: empty blocks cost 70 ns a byte and give no output.
  static constexpr size_t kStepInput = 2u << 10;

  Gunzip(const uint8_t* data, size_t size, size_t max_bytes);  // `data` must stay where it is
  ~Gunzip() { inflateEnd(&stream_); }
  Gunzip(const Gunzip&) = delete;
  Gunzip& operator=(const Gunzip&) = delete;

  enum class State : uint8_t { unfinished, done, too_large, broken };
  // Appends up to next_bytes() to `out`.
  State step(ByteBuffer& out);
  // One byte more than allowed, so that "too large" shows as output and not as a full buffer.
  size_t next_bytes(const ByteBuffer& out) const { return std::min(kStepBytes, max_bytes_ + 1 - out.size()); }

  static constexpr size_t kStateBytes = 48u << 10;  // of zlib, most of it the window

 private:
  z_stream stream_{};
  size_t left_;  // of the input
  const size_t max_bytes_;
};

}  // namespace fused_mlp::front
