// SPDX-License-Identifier: Apache-2.0
// One gRPC call on a stream of HTTP/2: messages are read, handed over, or held back until their connection
// may go on; answer messages and a status go out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/byte_buffer.hpp"
#include "front/call/call.hpp"
#include "front/grpc/grpc_head.hpp"

namespace fused_mlp::front {

class GrpcCall final : public Call {
 public:
  explicit GrpcCall(Loop* loop) : Call(loop, own_head_) {}
  uint8_t* add_message(size_t size) override;
  bool half_closed() const override { return half_closed_ && !reading_ && !has_unread(); }
  void message_done() override;
  size_t receive(const uint8_t* data, size_t size) override;
  bool unpacking() const override { return !finished_ && unread_.empty() && reader_.unpacking(); }
  void continue_reading() override;
  void open_window() override;
  bool send_trailers() override;
  void recycle() override;
  void reset();

 private:
  void start_reading(const Method& method) override;
  void end_request() override;
  int http_status(int) const override { return 200; }
  void send() override;
  void drop_request() override;
  bool has_unread() const { return !unread_.empty() || reader_.unpacking(); }
  bool read(const uint8_t*& data, size_t& size, SlabPool* slabs);
  bool must_wait() const;
  void keep_unread(const uint8_t* data, size_t size);
  void after_reading();
  void send_status_only();

  GrpcRequestHead own_head_;
  uint32_t messages_in_flight_ = 0;
  uint32_t max_in_flight_ = 0;  // 0: a unary call
  bool reading_ = false;        // takes messages out of what was unread_
  size_t withheld_bytes_ = 0;   // of the stream's window, until the method has caught up
  ByteBuffer unread_;  // of a streaming call, while its messages may not be handed over: bytes as they came
  Charge<PeerAccount> unread_charge_;
};

}  // namespace fused_mlp::front
