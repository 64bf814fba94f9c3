// SPDX-License-Identifier: Apache-2.0
// What the header block of a request says, checked against the rules of gRPC over HTTP/2. Loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/arm.hpp"
#include "engine/share.hpp"
#include "engine/trace_context.hpp"
#include "front/grpc/message.hpp"
#include "front/limits.hpp"
#include "front/rest/rest_path.hpp"

namespace fused_mlp::front {

class Application;
class Method;

constexpr size_t kFieldOverhead = 32;  // as HPACK (RFC 7541, 4.1) counts a field

using Metadata =
    std::vector<std::pair<std::string, std::string>>;  // binary values as they are, not in base64

size_t memory_bytes(const Metadata& metadata);

// How a request that never becomes a call is answered.
struct Rejection {
  int http_status;
  int code;
  std::string text;
};

// What a request of the REST port says besides.
struct RestFields {
  Verb verb = Verb::other;
  RestPath path;
  int64_t content_length = -1;          // -1: not said
  int64_t json_bytes = -1;              // Inference-Header-Content-Length
  const std::string* origin = nullptr;  // one that CORS allows, or "*"
  uint32_t hosts = 0;                   // how many Host headers
  bool bad_length = false, bad_json_bytes = false, has_encoding = false, preflight = false;
  bool has_origin = false;  // a browser sent it
};

class RequestHead {
 public:
  void field(std::string_view name, std::string_view value, const Limits& limits, Application& application);
  // After the last field. nullopt: the request may go on.
  std::optional<Rejection> check(const Limits& limits) const;
  // The same for REST: rest/rest_head.cpp.
  void rest_field(std::string_view name, std::string_view value, const Limits& limits,
                  Application& application);
  std::optional<Rejection> check_rest(const Limits& limits) const;
  const RestFields& rest() const { return rest_; }
  void reset();
  // What it keeps on the heap beyond a few hundred bytes.
  size_t memory_bytes() const { return has_metadata_ ? front::memory_bytes(metadata_) : 0; }

  Method* method() const { return method_; }
  Encoding encoding() const { return encoding_; }
  int64_t timeout_ns() const { return timeout_ns_; }  // -1: none
  std::string_view path() const { return path_; }  // of REST, of methods that want metadata, of unknown ones
  Metadata& metadata() { return metadata_; }       // likewise, without the headers of gRPC itself
  const std::optional<uint64_t>& ab_key() const { return ab_key_; }  // hash_key of x-ab-key
  const ArmMetadata& arm() const { return arm_; }
  const TraceContext& trace() const { return trace_; }

 private:
  void read_common(std::string_view name, std::string_view value);  // what both protocols have
  void keep(std::string_view name, std::string_view value);
  void read_timeout(std::optional<int64_t> timeout_ns);
  void read_trace(std::string_view value);

  Method* method_ = nullptr;
  int64_t timeout_ns_ = -1;
  size_t bytes_ = 0;
  Encoding encoding_ = Encoding::identity;
  bool post_ = false, grpc_content_ = false, te_trailers_ = false, keep_metadata_ = false;
  bool bad_timeout_ = false, bad_binary_ = false, has_metadata_ = false, is_rest_ = false;
  bool has_trace_ = false;
  ArmMetadata arm_;
  TraceContext trace_;
  std::optional<uint64_t> ab_key_;
  std::string path_;
  Metadata metadata_;
  RestFields rest_;
};

}  // namespace fused_mlp::front
