// SPDX-License-Identifier: Apache-2.0
// The header block of a request on the REST port, and the paths of the Open Inference Protocol.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "front/call/request_head.hpp"

namespace fused_mlp::front {

enum class Verb : uint8_t { get, head, post, options, other };
Verb verb_of(std::string_view name);
const char* verb_name(Verb verb);

// A prediction is answered here. Python answers everything else, and parses the path itself.
struct RestPath {
  bool infer = false;
  bool broken = false;         // not UTF-8, or bad percent-encoding in the path of a prediction
  std::string model, version;  // of a prediction, decoded; version empty: the default
};

// The fields that only REST has.
struct RestFields {
  Verb verb = Verb::other;
  RestPath path;
  int64_t content_length = -1;          // -1: unknown
  int64_t json_bytes = -1;              // Inference-Header-Content-Length
  const std::string* origin = nullptr;  // an origin that CORS allows, or "*"
  uint32_t hosts = 0;                   // how many Host headers
  bool bad_length = false, bad_json_bytes = false, has_encoding = false, preflight = false;
  bool has_origin = false;  // a browser sent it
  bool bad_host = false;    // see AllowedHosts
};

class RestRequestHead final : public RequestHead {
 public:
  std::optional<Rejection> check(const Limits& limits) const override;
  Metadata accepted_encodings() const override { return {{"accept-encoding", "gzip, deflate"}}; }
  const RestFields* rest() const override { return &rest_; }
  void reset() {
    RequestHead::reset();
    rest_ = {};
  }

 private:
  bool read_own(std::string_view name, std::string_view value, Application& application) override;

  RestFields rest_;
};

// `path` becomes that of a request's target, with its query, cut to `most` bytes: "/v2?a=b" is itself one,
// "http://host/v2" has "/v2".
void read_target(std::string_view target, size_t most, std::string& path);

// `target` with its query: "/v2/models/digits/versions/1/infer".
RestPath read_rest_path(std::string_view target);

// "a%20b" -> "a b"; nullopt: a '%' without two hex digits.
std::optional<std::string> percent_decode(std::string_view text);

}  // namespace fused_mlp::front
