// SPDX-License-Identifier: Apache-2.0
// One call on the REST port: a body comes in, and an HTTP status with a body goes out. Over HTTP/2 or
// HTTP/1.1.
#pragma once

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "codec/byte_buffer.hpp"
#include "front/call/call.hpp"
#include "front/rest/rest_head.hpp"

namespace fused_mlp::front {

class RestCall final : public Call {
 public:
  explicit RestCall(Loop* loop) : Call(loop, own_head_) {}
  uint8_t* add_message(size_t size) override { return out_.extend(size); }
  bool half_closed() const override { return half_closed_; }
  size_t receive(const uint8_t* data, size_t size) override;
  void continue_reading() override { has_message_ ? hand_over() : end_request(); }
  bool send_trailers() override { return false; }  // the last DATA frame ends the stream
  void recycle() override;
  void reset();

 private:
  void start_reading(const Method&) override;
  void end_request() override;
  int http_status(int status) const override { return status; }
  void send() override;

  RestRequestHead own_head_;
};

// The HTTP status of a gRPC code, as google.rpc.Code defines it.
int http_status_of(int code) noexcept;

// {"error":"..."}; `text` is UTF-8.
void write_error(std::string_view text, ByteBuffer& out);

// The head of an answer. Holds views: names and values must outlive it.
class AnswerHead {
 public:
  AnswerHead(int status, size_t content_length);
  AnswerHead(const AnswerHead&) = delete;
  AnswerHead& operator=(const AnswerHead&) = delete;
  void add(std::string_view name, std::string_view value);  // names are lower case

  std::span<const nghttp2_nv> fields() const { return fields_; }
  // `closes`: the connection ends after this answer.
  void write_http1(bool closes, ByteBuffer& out) const;

 private:
  const int status_;
  char status_text_[4], length_text_[24];
  std::vector<nghttp2_nv> fields_;
};

}  // namespace fused_mlp::front
