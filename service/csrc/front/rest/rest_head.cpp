// SPDX-License-Identifier: Apache-2.0
// What the header block of a request on the REST port says.
#include <charconv>

#include "front/grpc/code.hpp"
#include "front/grpc/metadata.hpp"
#include "front/grpc/method.hpp"
#include "front/grpc/request_head.hpp"
#include "front/rest/token.hpp"

namespace fused_mlp::front {
namespace {

constexpr size_t kLongestPath = 1024;

// Digits and nothing else; -1: anything else, or too many of them.
int64_t read_count(std::string_view text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size() && text[0] != '-';
  return whole ? value : -1;
}

Encoding content_encoding(std::string_view name) {
  if (is_token(name, "identity")) return Encoding::identity;
  return is_token(name, "gzip") || is_token(name, "deflate") ? Encoding::gzip : Encoding::unknown;
}

const std::string* allowed_origin(const std::vector<std::string>& allowed, std::string_view origin) {
  for (const std::string& each : allowed) {
    if (each == "*" || each == origin) return &each;
  }
  return nullptr;
}

}  // namespace

// The path and the method come first, from HTTP/1.1 too.
void RequestHead::rest_field(std::string_view name, std::string_view value, const Limits& limits,
                             Application& application) {
  bytes_ += name.size() + value.size() + kFieldOverhead;
  if (bytes_ > limits.max_header_bytes || name.empty()) return;
  is_rest_ = true;
  switch (name.size()) {
    case 4:
      if (name == "host") ++rest_.hosts;
      break;
    case 5:
      if (name == ":path") {
        read_target(value, kLongestPath + 1, path_);
        rest_.path = read_rest_path(path_);
        method_ = application.find_rest(rest_.path.infer);
        keep_metadata_ = method_ != nullptr && method_->wants_metadata();
        return;
      }
      break;
    case 6:
      if (name == "origin") {
        rest_.has_origin = true;
        rest_.origin = allowed_origin(application.cors_origins(), value);
      }
      break;
    case 7:
      if (name == ":method") return void(rest_.verb = verb_of(value));
      break;
    case 14:
      if (name == "content-length") {
        rest_.content_length = read_count(value);
        rest_.bad_length = rest_.content_length < 0;
        return;
      }
      break;
    case 16:
      if (name == "content-encoding") {
        encoding_ = rest_.has_encoding ? Encoding::unknown : content_encoding(value);
        rest_.has_encoding = true;
        return;
      }
      break;
    case 20:
      if (name == "x-request-timeout-ms") return read_timeout(parse_timeout(std::string(value) + "m"));
      break;
    case 29:
      if (name == "access-control-request-method") rest_.preflight = true;
      break;
    case 31:
      if (name == "inference-header-content-length") {
        rest_.bad_json_bytes |= rest_.json_bytes >= 0;  // it came before
        rest_.json_bytes = read_count(value);
        rest_.bad_json_bytes |= rest_.json_bytes < 0;
        return;
      }
      break;
    default:
      read_common(name, value);
      break;
  }
  if (keep_metadata_ && name[0] != ':' && !name.starts_with("grpc-")) keep(name, value);
}

std::optional<Rejection> RequestHead::check_rest(const Limits& limits) const {
  if (bytes_ > limits.max_header_bytes) {
    return Rejection{431, kResourceExhausted,
                     "headers: expected at most " + std::to_string(limits.max_header_bytes) + " bytes"};
  }
  const auto invalid = [](std::string text) { return Rejection{400, kInvalidArgument, std::move(text)}; };
  if (path_.size() > kLongestPath) {
    return Rejection{414, kInvalidArgument,
                     "path: expected at most " + std::to_string(kLongestPath) + " bytes"};
  }
  if (rest_.verb == Verb::other) return Rejection{405, kUnimplemented, "expected method GET or POST"};
  if (rest_.verb == Verb::options) {
    const bool allowed = rest_.preflight && rest_.origin != nullptr;
    return allowed ? Rejection{204, kOk, ""} : Rejection{405, kUnimplemented, "expected method GET or POST"};
  }
  // Browsers send some requests without asking first, and only keep the answer from the page.
  if (rest_.verb == Verb::post && rest_.has_origin && rest_.origin == nullptr) {
    return Rejection{403, kPermissionDenied, "origin: expected one of FUSED_MLP_CORS_ORIGINS"};
  }
  if (method_ == nullptr) return Rejection{404, kUnimplemented, "unknown path " + path_.substr(0, 256)};
  if (rest_.path.infer && rest_.verb != Verb::post) {
    return Rejection{405, kUnimplemented, "expected method POST"};
  }
  if (rest_.path.broken) return invalid("path: expected UTF-8, with two hexadecimal digits after each %");
  if (rest_.bad_length) return invalid("content-length: expected a whole number");
  if (rest_.bad_json_bytes) return invalid("inference-header-content-length: expected a whole number, once");
  if (encoding_ == Encoding::unknown) {
    return Rejection{415, kUnimplemented, "content-encoding: expected identity, gzip or deflate"};
  }
  if (bad_timeout_) return invalid("x-request-timeout-ms: expected up to 8 digits");
  if (bad_binary_) return invalid("headers that end in -bin: expected base64");
  return std::nullopt;
}

}  // namespace fused_mlp::front
