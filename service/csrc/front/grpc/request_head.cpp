// SPDX-License-Identifier: Apache-2.0
#include "front/grpc/request_head.hpp"

#include <utility>

#include "front/grpc/code.hpp"
#include "front/grpc/metadata.hpp"
#include "front/grpc/method.hpp"

namespace fused_mlp::front {
namespace {

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

size_t memory_bytes(const Metadata& metadata) {
  size_t bytes = metadata.capacity() * sizeof(Metadata::value_type);
  for (const auto& [name, value] : metadata) bytes += name.capacity() + value.capacity();
  return bytes;
}

// Compares lengths before bytes: this runs for every header of every request.
void RequestHead::field(std::string_view name, std::string_view value, const Limits& limits,
                        Application& application) {
  bytes_ += name.size() + value.size() + kFieldOverhead;
  if (bytes_ > limits.max_header_bytes) return;
  switch (name.size()) {
    case 2:
      if (name == "te") return void(te_trailers_ = value == "trailers");
      break;
    case 5:
      if (name == ":path") {
        method_ = application.find(value);
        keep_metadata_ = method_ != nullptr && method_->wants_metadata();
        if (keep_metadata_ || method_ == nullptr) path_ = value.substr(0, kLongestPathKept);
        return;
      }
      break;
    case 7:
      if (name == ":method") return void(post_ = value == "POST");
      break;
    case 12:
      if (name == "content-type") return void(grpc_content_ = is_grpc_content(value));
      read_common(name, value);
      break;
    case 13:
      if (name == "grpc-encoding") return void(encoding_ = encoding_of(value));
      break;
    default:
      read_common(name, value);
      break;
  }
  if (keep_metadata_ && name[0] != ':' && !name.starts_with("grpc-")) keep(name, value);
}

void RequestHead::read_common(std::string_view name, std::string_view value) {
  switch (name.size()) {
    case 8:
      if (name == "x-ab-key" && !value.empty()) ab_key_ = hash_key(value);
      break;
    case 11:
      if (name == "traceparent") read_trace(value);
      break;
    case 12:
      if (name == "grpc-timeout") read_timeout(parse_timeout(value));
      break;
    case 15:
      if (name == "x-fused-mlp-arm") arm_.read_arm(value);
      break;
    case 19:
      if (name == "x-fused-mlp-variant") arm_.read_variant(value);
      break;
    default:
      break;
  }
}

void RequestHead::read_timeout(std::optional<int64_t> timeout_ns) {
  bad_timeout_ = !timeout_ns.has_value();
  timeout_ns_ = timeout_ns.value_or(-1);
}

// Several of them contradict each other: W3C Trace Context has the request go on without any.
void RequestHead::read_trace(std::string_view value) {
  trace_ = std::exchange(has_trace_, true) ? TraceContext{} : parse_traceparent(value);
}

// A binary value may be a list: HTTP/2 peers may join values with commas.
void RequestHead::keep(std::string_view name, std::string_view value) {
  has_metadata_ = true;
  if (!is_binary_name(name)) {
    metadata_.emplace_back(name, value);
    return;
  }
  while (true) {
    const size_t comma = value.find(',');
    auto bytes = base64_decode(value.substr(0, comma));
    bad_binary_ |= !bytes.has_value();
    if (bytes) metadata_.emplace_back(name, *std::move(bytes));
    if (comma == std::string_view::npos) return;
    value.remove_prefix(comma + 1);
    while (value.starts_with(' ')) value.remove_prefix(1);
  }
}

std::optional<Rejection> RequestHead::check(const Limits& limits) const {
  if (bytes_ > limits.max_header_bytes) {
    return Rejection{200, kResourceExhausted,
                     "headers: expected at most " + std::to_string(limits.max_header_bytes) + " bytes"};
  }
  if (!post_) return Rejection{405, kInternal, "expected method POST"};
  if (!grpc_content_) return Rejection{415, kInternal, "expected content-type application/grpc"};
  if (!te_trailers_) return Rejection{200, kInternal, "expected te: trailers (does a proxy remove it?)"};
  if (method_ == nullptr) return Rejection{200, kUnimplemented, "unknown method " + path_};
  if (encoding_ == Encoding::unknown) {
    return Rejection{200, kUnimplemented, "grpc-encoding: expected identity or gzip"};
  }
  if (bad_timeout_) {
    return Rejection{200, kInvalidArgument, "grpc-timeout: expected up to 8 digits and one of HMSmun"};
  }
  if (bad_binary_) return Rejection{200, kInvalidArgument, "binary metadata: expected base64"};
  return std::nullopt;
}

void RequestHead::reset() {
  method_ = nullptr;
  timeout_ns_ = -1;
  bytes_ = 0;
  encoding_ = Encoding::identity;
  post_ = grpc_content_ = te_trailers_ = keep_metadata_ = bad_timeout_ = bad_binary_ = false;
  arm_.reset();
  trace_ = {};
  has_trace_ = false;
  ab_key_.reset();
  path_.clear();
  if (is_rest_) rest_ = {};
  is_rest_ = false;
  if (has_metadata_) Metadata().swap(metadata_);
  has_metadata_ = false;
}

}  // namespace fused_mlp::front
