// SPDX-License-Identifier: Apache-2.0
#include "front/grpc/grpc_head.hpp"

#include "codec/predict_input.hpp"
#include "engine/status.hpp"
#include "front/call/code.hpp"
#include "front/call/metadata.hpp"
#include "front/call/method.hpp"

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

constexpr size_t kLongestPathKept = 256;

bool is_grpc_content(std::string_view type) {
  constexpr std::string_view kGrpc = "application/grpc";
  if (!type.starts_with(kGrpc)) return false;
  type.remove_prefix(kGrpc.size());
  return type.empty() || type == "+proto" || type[0] == ';' || type.starts_with("+proto;");
}

Encoding encoding_of(std::string_view name) {
  if (name == "identity") return Encoding::identity;
  return name == "gzip" ? Encoding::gzip : Encoding::unknown;
}

}  // namespace

const std::span<const nghttp2_nv> kResponseHead(kHead);
const std::span<const nghttp2_nv> kOkTrailers(kOkStatus);

bool GrpcRequestHead::read_own(std::string_view name, std::string_view value, Application& application) {
  switch (name.size()) {
    case 2:
      if (name != "te") return false;
      te_trailers_ = value == "trailers";
      return true;
    case 5:
      if (name != ":path") return false;
      set_method(application.find(value));
      if (keep_metadata_ || method_ == nullptr) path_ = cut_text(value, kLongestPathKept);
      return true;
    case 7:
      if (name != ":method") return false;
      post_ = value == "POST";
      return true;
    case 12:
      if (name != "content-type") return false;
      grpc_content_ = is_grpc_content(value);
      return true;
    case 13:
      if (name != "grpc-encoding") return false;
      encoding_ = encoding_of(value);
      return true;
    default:
      return false;
  }
}

std::optional<Rejection> GrpcRequestHead::check(const Limits& limits) const {
  if (bytes_ > limits.max_header_bytes) {
    return Rejection{200, kResourceExhausted,
                     "headers: expected at most " + std::to_string(limits.max_header_bytes) + " bytes"};
  }
  if (!post_) return Rejection{405, kInternal, "expected method POST"};
  if (!grpc_content_) return Rejection{415, kInternal, "expected content-type application/grpc"};
  if (!te_trailers_) return Rejection{200, kInternal, "expected te: trailers (does a proxy remove it?)"};
  if (method_ == nullptr) {
    return Rejection{200, kUnimplemented,
                     is_utf8(path_) ? "unknown method " + path_ : "path: expected UTF-8"};
  }
  if (encoding_ == Encoding::unknown) {
    return Rejection{200, kUnimplemented, "grpc-encoding: expected identity or gzip"};
  }
  if (bad_timeout_) {
    return Rejection{200, kInvalidArgument, "grpc-timeout: expected up to 8 digits and one of HMSmun"};
  }
  if (bad_binary_) return Rejection{200, kInvalidArgument, "binary metadata: expected base64"};
  if (repeated_subject_) return Rejection{200, kInvalidArgument, kRepeatedSubject};
  return std::nullopt;
}

void GrpcRequestHead::reset() {
  RequestHead::reset();
  post_ = grpc_content_ = te_trailers_ = false;
}

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
