// SPDX-License-Identifier: Apache-2.0
// The HTTP/2 header fields of gRPC: those of a request, and the head, status and trailers of its answer.
#pragma once

#include <nghttp2/nghttp2.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "front/call/request_head.hpp"

namespace fused_mlp::front {

class GrpcRequestHead final : public RequestHead {
 public:
  std::optional<Rejection> check(const Limits& limits) const override;
  Metadata accepted_encodings() const override { return {{"grpc-accept-encoding", "identity,gzip"}}; }
  void reset();

 private:
  bool read_own(std::string_view name, std::string_view value, Application& application) override;

  bool post_ = false, grpc_content_ = false, te_trailers_ = false;
};

extern const std::span<const nghttp2_nv> kResponseHead;  // before the messages of an answer
extern const std::span<const nghttp2_nv> kOkTrailers;

// The fields that end a call. Holds the encoded values until nghttp2 has copied them.
class StatusFields {
 public:
  StatusFields(int code, std::string_view text, const Metadata& trailers);
  // For an answer without messages: its only header block is also its head.
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
