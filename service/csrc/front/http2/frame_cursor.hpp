// SPDX-License-Identifier: Apache-2.0
// Where in the stream of frames a connection is, from the frames' headers alone: nghttp2 does not report
// frames that it ignores. Knows since when a header block is unfinished, and finds frames that break RFC 9113
// and that nghttp2 ignores because it keeps neither closed streams nor priorities. Loop thread only.
#pragma once

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace fused_mlp::front {

// A frame that ends the connection. For GOAWAY and the log.
struct FrameMistake {
  uint32_t error;
  const char* text;
};

class FrameCursor {
 public:
  // Bytes that nghttp2 has taken.
  void advance(const uint8_t* data, size_t size, int64_t now_ns) {
    const uint8_t* const end = data + size;
    while (static_cast<size_t>(end - data) >= left_) {
      data += left_;
      left_ = 0;
      const size_t size_left = static_cast<size_t>(end - data);
      if (have_ == 0 && size_left >= kHeaderBytes && data[3] != NGHTTP2_PRIORITY) {  // nearly always
        begin_frame(data, now_ns);
        data += kHeaderBytes;
        continue;
      }
      const size_t wanted = have_ < kHeaderBytes ? kHeaderBytes : kHeaderBytes + kDependencyBytes;
      const size_t n = std::min(size_left, wanted - have_);
      std::copy_n(data, n, header_ + have_);
      have_ += n;
      data += n;
      if (have_ < wanted) return;
      if (have_ == kHeaderBytes && begins_with_dependency()) continue;
      const size_t payload = have_ - kHeaderBytes;
      begin_frame(header_, now_ns);
      left_ -= payload;
    }
    left_ -= static_cast<size_t>(end - data);
  }
  // Size of the last header block, as its frames announce it.
  size_t header_block_bytes() const { return block_bytes_; }
  // 0: no header block has begun, or it is complete.
  int64_t header_block_since_ns() const { return block_ended_ && left_ == 0 ? 0 : block_since_ns_; }
  // Frames of unknown types since the last call.
  size_t take_unknown() { return std::exchange(unknown_, 0); }
  // Null: none so far.
  const FrameMistake* mistake() const { return mistake_; }

 private:
  static constexpr size_t kHeaderBytes = 9;
  static constexpr size_t kDependencyBytes = 4;  // the payload of PRIORITY begins with a stream
  static constexpr size_t kPrefaceBytes = NGHTTP2_CLIENT_MAGIC_LEN;
  // A peer that sends on an older stream is ignored, as RFC 9113 allows.
  static constexpr size_t kEndedKept = 8;
  static constexpr FrameMistake kClosed{NGHTTP2_STREAM_CLOSED,
                                        "DATA or HEADERS on a stream that the peer has ended"};
  static constexpr FrameMistake kSmallerStream{NGHTTP2_PROTOCOL_ERROR,
                                               "a new stream with a smaller number than one before"};
  static constexpr FrameMistake kPriority{NGHTTP2_PROTOCOL_ERROR,
                                          "PRIORITY of stream 0, or of a stream that depends on itself"};

  static uint32_t stream_at(const uint8_t* at) {
    return (uint32_t{at[0]} & 0x7f) << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3];
  }
  bool begins_with_dependency() const {
    return header_[3] == NGHTTP2_PRIORITY && (header_[0] | header_[1]) == 0 && header_[2] >= kDependencyBytes;
  }

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
    const uint32_t stream = stream_at(header + 5);
    if (type <= NGHTTP2_HEADERS) {
      check_stream(stream, type == NGHTTP2_HEADERS);
      if ((header[4] & NGHTTP2_FLAG_END_STREAM) != 0) note_end(stream);
    } else if (type == NGHTTP2_RST_STREAM) {
      note_end(stream);
    } else if (type == NGHTTP2_PRIORITY) {
      if (stream == 0 || (begins_with_dependency() && stream_at(header + kHeaderBytes) == stream)) {
        mistake_ = &kPriority;
      }
    }
  }

  // nghttp2 checks streams that are open, idle, or 0.
  void check_stream(uint32_t stream, bool headers) {
    if (stream > newest_) {
      if (!headers) return;
      if (stream > newest_ + 2) skipped_after_ = newest_, skipped_before_ = stream;
      newest_ = stream;
    } else if (std::find(ended_.begin(), ended_.end(), stream) != ended_.end()) {
      if (stream != 0) mistake_ = &kClosed;
    } else if (stream > skipped_after_ && stream < skipped_before_) {
      mistake_ = &kSmallerStream;
    }
  }
  void note_end(uint32_t stream) { ended_[next_ended_++ % kEndedKept] = stream; }

  uint8_t header_[kHeaderBytes + kDependencyBytes];
  size_t have_ = 0;
  size_t left_ = kPrefaceBytes;  // of the frame's payload; at first of the preface
  int64_t block_since_ns_ = 0;
  size_t block_bytes_ = 0;
  size_t unknown_ = 0;
  bool block_ended_ = true;
  uint32_t newest_ = 0;  // stream
  uint32_t skipped_after_ = 0,
           skipped_before_ = 0;               // numbers between them were never used; the last such gap
  std::array<uint32_t, kEndedKept> ended_{};  // streams that the peer ended last
  uint32_t next_ended_ = 0;
  const FrameMistake* mistake_ = nullptr;
};

}  // namespace fused_mlp::front
