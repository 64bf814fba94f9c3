// SPDX-License-Identifier: Apache-2.0
// How an answer looks on the REST port: its HTTP status, its head, and the body of an error.
#pragma once

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "codec/byte_buffer.hpp"

namespace fused_mlp::front {

// Of a gRPC code, as google.rpc.Code defines it.
int http_status_of(int code) noexcept;

// {"error":"..."}; `text` is UTF-8.
void write_error(std::string_view text, ByteBuffer& out);

// Views: what was added must outlive it.
class RestHead {
 public:
  RestHead(int status, size_t content_length);
  RestHead(const RestHead&) = delete;
  RestHead& operator=(const RestHead&) = delete;
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
