// SPDX-License-Identifier: Apache-2.0
// Where in the stream of frames a connection is, from the frames' headers alone: nghttp2 does not tell about
// frames that it ignores. Knows since when a header block is unfinished. Loop thread only.
#pragma once

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace fused_mlp::front {

class FrameCursor {
 public:
  // Bytes that nghttp2 has taken.
  void advance(const uint8_t* data, size_t size, int64_t now_ns) {
    const uint8_t* const end = data + size;
    while (static_cast<size_t>(end - data) >= left_) {
      data += left_;
      left_ = 0;
      if (have_ == 0 && static_cast<size_t>(end - data) >= kHeaderBytes) {  // nearly always
        begin_frame(data, now_ns);
        data += kHeaderBytes;
        continue;
      }
      const size_t n = std::min(static_cast<size_t>(end - data), kHeaderBytes - have_);
      std::copy_n(data, n, header_ + have_);
      have_ += n;
      if (have_ < kHeaderBytes) return;
      data += n;
      begin_frame(header_, now_ns);
    }
    left_ -= static_cast<size_t>(end - data);
  }
  // Of the header block that came last, as its frames announce them.
  size_t header_block_bytes() const { return block_bytes_; }
  // 0: no header block has begun, or it is complete.
  int64_t header_block_since_ns() const { return block_ended_ && left_ == 0 ? 0 : block_since_ns_; }
  // Frames of unknown types since the last call.
  size_t take_unknown() { return std::exchange(unknown_, 0); }

 private:
  static constexpr size_t kHeaderBytes = 9;
  static constexpr size_t kPrefaceBytes = NGHTTP2_CLIENT_MAGIC_LEN;

  void begin_frame(const uint8_t* header, int64_t now_ns) {
    have_ = 0;
    left_ = size_t{header[0]} << 16 | size_t{header[1]} << 8 | header[2];
    const uint8_t type = header[3];
    unknown_ += type > NGHTTP2_CONTINUATION;
    if (type != NGHTTP2_CONTINUATION) {
      block_since_ns_ = type == NGHTTP2_HEADERS ? now_ns : 0;
      block_bytes_ = 0;
    }
    if (block_since_ns_ != 0) block_bytes_ += left_;
    block_ended_ = block_since_ns_ == 0 || (header[4] & NGHTTP2_FLAG_END_HEADERS) != 0;
  }

  uint8_t header_[kHeaderBytes];
  size_t have_ = 0;
  size_t left_ = kPrefaceBytes;  // of the frame's payload; at first of the preface
  int64_t block_since_ns_ = 0;
  size_t block_bytes_ = 0;
  size_t unknown_ = 0;
  bool block_ended_ = true;
};

}  // namespace fused_mlp::front
