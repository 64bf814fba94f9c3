// SPDX-License-Identifier: Apache-2.0
// Serialised frames that the socket has not taken yet. One per connection.
#pragma once

#include "codec/byte_buffer.hpp"
#include "front/http2/stall_timer.hpp"
#include "front/memory/held_requests.hpp"
#include "front/tls/transport.hpp"

namespace fused_mlp::front {

class OutputQueue {
 public:
  OutputQueue(PeerAccount& answers, size_t most_bytes) : answers_(answers), most_bytes_(most_bytes) {}

  bool empty() const { return bytes_.empty(); }
  // High-water mark: nothing more is serialised or read until the socket has taken some.
  bool full() const { return !bytes_.empty() && reaches_most_output(bytes_.size(), answers_, most_bytes_); }
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
  // After the last write of a turn.
  void settle() {
    if (bytes_.empty()) bytes_.reset(kKeptBytes);
    used_ = true;
    charge();
  }
  // A queue that was not used since the last call keeps no memory.
  void sweep() {
    if (!used_ && bytes_.empty() && bytes_.capacity() != 0) {
      bytes_.reset(0);
      charge();
    }
    used_ = false;
  }
  size_t charged_bytes() const { return charge_.bytes(); }
  int64_t stalled_since_ns() const { return stall_.since_ns(); }  // 0: not stalled

 private:
  static constexpr size_t kKeptBytes = 64u << 10;
  void charge() {
    if (charge_.bytes() != bytes_.capacity()) charge_.resize_anyway(answers_, bytes_.capacity());
  }

  PeerAccount& answers_;
  const size_t most_bytes_;
  ByteBuffer bytes_;
  Charge<PeerAccount> charge_;
  bool used_ = false;
  StallTimer stall_;
};

}  // namespace fused_mlp::front
