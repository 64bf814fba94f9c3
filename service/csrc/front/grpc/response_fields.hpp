// SPDX-License-Identifier: Apache-2.0
// The HTTP/2 header fields of an answer, by the rules of gRPC: its head, its status and its trailers.
#pragma once

#include <nghttp2/nghttp2.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "front/grpc/request_head.hpp"

namespace fused_mlp::front {

extern const std::span<const nghttp2_nv> kResponseHead;  // of an answer that has messages
extern const std::span<const nghttp2_nv> kOkTrailers;

// The fields that end a call. Holds the encoded values until nghttp2 has copied them.
class StatusFields {
 public:
  StatusFields(int code, std::string_view text, const Metadata& trailers);
  // The same for an answer without messages, whose only header block is its head, too.
  StatusFields(std::string_view http_status, int code, std::string_view text, const Metadata& trailers);
  StatusFields(const StatusFields&) = delete;
  StatusFields& operator=(const StatusFields&) = delete;
  std::span<const nghttp2_nv> fields() const { return fields_; }

 private:
  void add(int code, std::string_view text, const Metadata& trailers);

  std::string code_, text_;
  std::vector<std::string> encoded_;
  std::vector<nghttp2_nv> fields_;
};

}  // namespace fused_mlp::front
