// SPDX-License-Identifier: Apache-2.0
#include "front/grpc/response_fields.hpp"

#include "front/grpc/metadata.hpp"

namespace fused_mlp::front {
namespace {

nghttp2_nv field(std::string_view name, std::string_view value, uint8_t flags = NGHTTP2_NV_FLAG_NONE) {
  return {reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
          reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(), flags};
}

// Literals need no copy inside nghttp2.
constexpr uint8_t kLiteral = NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE;

const nghttp2_nv kContentType = field("content-type", "application/grpc", kLiteral);
const nghttp2_nv kHead[] = {field(":status", "200", kLiteral), kContentType};
const nghttp2_nv kOkStatus[] = {field("grpc-status", "0", kLiteral)};

}  // namespace

const std::span<const nghttp2_nv> kResponseHead(kHead);
const std::span<const nghttp2_nv> kOkTrailers(kOkStatus);

StatusFields::StatusFields(int code, std::string_view text, const Metadata& trailers) {
  add(code, text, trailers);
}

StatusFields::StatusFields(std::string_view http_status, int code, std::string_view text,
                           const Metadata& trailers) {
  fields_ = {field(":status", http_status), kContentType};
  add(code, text, trailers);
}

void StatusFields::add(int code, std::string_view text, const Metadata& trailers) {
  code_ = std::to_string(code);
  fields_.push_back(field("grpc-status", code_));
  if (!text.empty()) {
    text_ = percent_encode(text);
    fields_.push_back(field("grpc-message", text_));
  }
  encoded_.reserve(trailers.size());
  for (const auto& [name, value] : trailers) {
    encoded_.push_back(is_binary_name(name) ? base64_encode(value) : value);
    fields_.push_back(field(name, encoded_.back()));
  }
}

}  // namespace fused_mlp::front
