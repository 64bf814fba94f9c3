// SPDX-License-Identifier: Apache-2.0
#include "front/rest/rest_head.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "codec/predict_input.hpp"
#include "front/call/code.hpp"
#include "front/call/metadata.hpp"
#include "front/call/method.hpp"

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

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The text up to the next '/', which is taken off `rest` with it.
std::string_view next_part(std::string_view& rest) {
  const size_t slash = rest.find('/');
  const std::string_view part = rest.substr(0, slash);
  rest.remove_prefix(slash == std::string_view::npos ? rest.size() : slash + 1);
  return part;
}

}  // namespace

Verb verb_of(std::string_view name) {
  if (name == "POST") return Verb::post;
  if (name == "GET") return Verb::get;
  if (name == "HEAD") return Verb::head;
  return name == "OPTIONS" ? Verb::options : Verb::other;
}

const char* verb_name(Verb verb) {
  constexpr const char* kNames[] = {"GET", "HEAD", "POST", "OPTIONS", ""};
  return kNames[static_cast<size_t>(verb)];
}

std::optional<std::string> percent_decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    out.push_back(static_cast<char>(high << 4 | low));
    i += 2;
  }
  return out;
}

void read_target(std::string_view target, size_t most, std::string& path) {
  path.clear();
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.starts_with('/') || !is_token(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(std::min(target.find_first_of("/?", scheme.size()), target.size()));
    if (!target.starts_with('/')) path.push_back('/');
  }
  path.append(target.substr(0, most));
}

RestPath read_rest_path(std::string_view target) {
  constexpr std::string_view kModels = "/v2/models/";
  RestPath path;
  std::string_view rest = target.substr(0, target.find('?'));
  path.broken = !is_utf8(target);
  if (!rest.starts_with(kModels)) return path;
  rest.remove_prefix(kModels.size());
  const std::string_view model = next_part(rest);
  std::string_view verb = next_part(rest), version;
  if (verb == "versions") {
    version = next_part(rest);
    verb = next_part(rest);
  }
  path.infer = verb == "infer" && rest.empty() && !model.empty();
  if (!path.infer) return path;
  auto name = percent_decode(model), number = percent_decode(version);
  path.broken |= !name || !number || !is_utf8(*name) || !is_utf8(*number);
  path.model = std::move(name).value_or("");
  path.version = std::move(number).value_or("");
  return path;
}

// The path and the method come first, from HTTP/1.1 too.
bool RestRequestHead::read_own(std::string_view name, std::string_view value, Application& application) {
  if (name == ":path") {
    read_target(value, kLongestPath + 1, path_);
    rest_.path = read_rest_path(path_);
    set_method(application.find_rest(rest_.path.infer));
  } else if (name == ":method") {
    rest_.verb = verb_of(value);
  } else if (name == "content-length") {
    rest_.content_length = read_count(value);
    rest_.bad_length = rest_.content_length < 0;
  } else if (name == "content-encoding") {
    encoding_ = std::exchange(rest_.has_encoding, true) ? Encoding::unknown : content_encoding(value);
  } else if (name == "x-request-timeout-ms") {
    read_timeout(parse_timeout(std::string(value) + "m"));
  } else if (name == "inference-header-content-length") {
    rest_.bad_json_bytes |= rest_.json_bytes >= 0;  // it came before
    rest_.json_bytes = read_count(value);
    rest_.bad_json_bytes |= rest_.json_bytes < 0;
  } else {  // fields that are metadata as well
    rest_.hosts += name == "host";
    if (name == "host" || name == ":authority") rest_.bad_host |= !application.allows_host(value);
    rest_.preflight |= name == "access-control-request-method";
    if (name == "origin") {
      rest_.has_origin = true;
      rest_.origin = allowed_origin(application.cors_origins(), value);
    }
    return false;
  }
  return true;
}

std::optional<Rejection> RestRequestHead::check(const Limits& limits) const {
  if (bytes_ > limits.max_header_bytes) {
    return Rejection{431, kResourceExhausted,
                     "headers: expected at most " + std::to_string(limits.max_header_bytes) + " bytes"};
  }
  if (rest_.bad_host) {
    return Rejection{403, kPermissionDenied,
                     "host: expected an address, or a name of FUSED_MLP_ALLOWED_HOSTS, got another name"};
  }
  const auto invalid = [](std::string text) { return Rejection{400, kInvalidArgument, std::move(text)}; };
  if (path_.size() > kLongestPath) {
    return Rejection{414, kInvalidArgument,
                     "path: expected at most " + std::to_string(kLongestPath) + " bytes"};
  }
  if (rest_.path.broken) return invalid("path: expected UTF-8, with two hexadecimal digits after each %");
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
  if (rest_.bad_length) return invalid("content-length: expected a whole number");
  if (rest_.bad_json_bytes) return invalid("inference-header-content-length: expected a whole number, once");
  if (encoding_ == Encoding::unknown) {
    return Rejection{415, kUnimplemented, "content-encoding: expected identity, gzip or deflate"};
  }
  if (bad_timeout_) return invalid("x-request-timeout-ms: expected up to 8 digits");
  if (bad_binary_) return invalid("headers that end in -bin: expected base64");
  if (repeated_subject_) return invalid(kRepeatedSubject);
  return std::nullopt;
}

}  // namespace fused_mlp::front
