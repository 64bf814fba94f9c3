// Serialised frames that the socket has not taken yet. One per connection.
#pragma once

#include "codec/byte_buffer.hpp"
#include "front/stall_timer.hpp"
#include "front/transport.hpp"

namespace fused_mlp::front {

class OutputQueue {
 public:
  explicit OutputQueue(size_t most_bytes) : most_bytes_(most_bytes) {}

  bool empty() const { return bytes_.empty(); }
  // High-water mark: nothing more is serialised or read until the socket has taken some.
  bool full() const { return bytes_.size() >= most_bytes_; }
  uint8_t* extend(size_t size) { return bytes_.extend(size); }
  void append(const uint8_t* data, size_t size) { bytes_.append(data, size); }

  // One write to the socket.
  IoResult send(Transport& transport, int64_t now_ns) {
    const IoResult result = transport.write(bytes_.data(), bytes_.size());
    if (result.state == Io::blocked) stall_.start(now_ns);
    if (result.state == Io::done) {
      stall_.on_taken(result.bytes, result.bytes == bytes_.size(), now_ns);
      bytes_.consume(result.bytes);
    }
    return result;
  }
  void release_memory() { bytes_.reset(kKeptBytes); }
  int64_t stalled_since_ns() const { return stall_.since_ns(); }  // 0: not stalled

 private:
  static constexpr size_t kKeptBytes = 64u << 10;
  const size_t most_bytes_;
  ByteBuffer bytes_;
  StallTimer stall_;
};

}  // namespace fused_mlp::front
