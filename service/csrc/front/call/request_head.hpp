// SPDX-License-Identifier: Apache-2.0
// The header block of a request: the fields that gRPC and REST share. grpc/grpc_head.hpp and
// rest/rest_head.hpp add the fields and rules of their own. Loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "access/callers.hpp"
#include "engine/route/arm.hpp"
#include "engine/route/share.hpp"
#include "engine/telemetry/trace_context.hpp"
#include "front/call/message.hpp"
#include "front/limits.hpp"

namespace fused_mlp::front {

class Application;
class Method;
struct RestFields;

// A proxy that adds the header without removing the caller's own would let it choose. Some join both with a
// comma.
constexpr const char* kRepeatedSubject =
    "x-fused-mlp-caller: expected one name without commas, got several; have the proxy replace it";
constexpr size_t kFieldOverhead = 32;  // as HPACK (RFC 7541, 4.1) counts a field

using Metadata =
    std::vector<std::pair<std::string, std::string>>;  // binary values as they are, not in base64

size_t memory_bytes(const Metadata& metadata);

// The answer to a request that is refused before its method sees it.
struct Rejection {
  int http_status;
  int code;
  std::string text;
  uint32_t retry_after_ms = 0;  // 0: unknown
};

class RequestHead {
 public:
  RequestHead() = default;
  virtual ~RequestHead() = default;
  RequestHead(const RequestHead&) = delete;
  RequestHead& operator=(const RequestHead&) = delete;

  void field(std::string_view name, std::string_view value, const Limits& limits, Application& application);
  // After the last field. nullopt: the request may go on.
  virtual std::optional<Rejection> check(const Limits& limits) const = 0;
  // Sent with a refusal of the request's compression.
  virtual Metadata accepted_encodings() const = 0;
  // Null: not a request of the REST port.
  virtual const RestFields* rest() const { return nullptr; }
  // Heap memory beyond a few hundred bytes.
  size_t memory_bytes() const { return has_metadata_ ? front::memory_bytes(metadata_) : 0; }

  Method* method() const { return method_; }
  Encoding encoding() const { return encoding_; }
  int64_t timeout_ns() const { return timeout_ns_; }  // -1: none
  // Kept for REST, for methods that want metadata, and for unknown methods.
  std::string_view path() const { return path_; }
  Metadata& metadata() { return metadata_; }  // kept likewise, without the headers of gRPC itself
  const std::optional<uint64_t>& ab_key() const { return ab_key_; }  // hash_key of x-ab-key
  const ArmMetadata& arm() const { return arm_; }
  const TraceContext& trace() const { return trace_; }
  Shown shown() const { return {key_, subject_, has_key_, has_subject_}; }

 protected:
  // Reads a field that only one protocol defines. True: it is not metadata.
  virtual bool read_own(std::string_view name, std::string_view value, Application& application) = 0;
  void set_method(Method* method);
  void read_timeout(std::optional<int64_t> timeout_ns);
  void reset();

  Method* method_ = nullptr;
  size_t bytes_ = 0;
  Encoding encoding_ = Encoding::identity;
  bool keep_metadata_ = false, bad_timeout_ = false, bad_binary_ = false, repeated_subject_ = false;
  std::string path_;

 private:
  void keep(std::string_view name, std::string_view value);
  void read_trace(std::string_view value);
  void read_key(std::string_view value);
  void read_bearer(std::string_view value);

  int64_t timeout_ns_ = -1;
  bool has_metadata_ = false, has_trace_ = false;
  bool has_key_ = false, has_bearer_ = false, has_subject_ = false;
  ArmMetadata arm_;
  TraceContext trace_;
  std::optional<uint64_t> ab_key_;
  std::string key_, subject_;
  Metadata metadata_;
};

}  // namespace fused_mlp::front
