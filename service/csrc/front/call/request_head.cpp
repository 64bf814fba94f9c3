// SPDX-License-Identifier: Apache-2.0
#include "front/call/request_head.hpp"

#include <utility>

#include "front/call/metadata.hpp"
#include "front/call/method.hpp"

namespace fused_mlp::front {
size_t memory_bytes(const Metadata& metadata) {
  size_t bytes = metadata.capacity() * sizeof(Metadata::value_type);
  for (const auto& [name, value] : metadata) bytes += name.capacity() + value.capacity();
  return bytes;
}

// Compares lengths before bytes: this runs for every header of every request.
void RequestHead::field(std::string_view name, std::string_view value, const Limits& limits,
                        Application& application) {
  bytes_ += name.size() + value.size() + kFieldOverhead;
  if (bytes_ > limits.max_header_bytes || name.empty()) return;
  if (read_own(name, value, application)) return;
  switch (name.size()) {
    case 8:
      if (name == "x-ab-key" && !value.empty()) ab_key_ = hash_key(value);
      break;
    case 9:
      if (name == "x-api-key" && !has_bearer_) read_key(value);
      break;
    case 11:
      if (name == "traceparent") read_trace(value);
      break;
    case 12:
      if (name == "grpc-timeout") read_timeout(parse_timeout(value));
      break;
    case 13:
      if (name == "authorization") read_bearer(value);
      break;
    case 15:
      if (name == "x-fused-mlp-arm") arm_.read_arm(value);
      break;
    case 18:
      if (name == "x-fused-mlp-caller") {
        repeated_subject_ |= std::exchange(has_subject_, true) || value.find(',') != value.npos;
        subject_ = value.substr(0, kMaxKeyBytes + 1);
      }
      break;
    case 19:
      if (name == "x-fused-mlp-variant") arm_.read_variant(value);
      break;
    default:
      break;
  }
  if (keep_metadata_ && name[0] != ':' && !name.starts_with("grpc-")) keep(name, value);
}

void RequestHead::set_method(Method* method) {
  method_ = method;
  keep_metadata_ = method != nullptr && method->wants_metadata();
}

void RequestHead::read_timeout(std::optional<int64_t> timeout_ns) {
  bad_timeout_ = !timeout_ns.has_value();
  timeout_ns_ = timeout_ns.value_or(-1);
}

// Several traceparents contradict each other: W3C Trace Context ignores them all.
void RequestHead::read_trace(std::string_view value) {
  trace_ = std::exchange(has_trace_, true) ? TraceContext{} : parse_traceparent(value);
}

// One byte more than the longest key suffices to know that a key is wrong.
void RequestHead::read_key(std::string_view value) {
  has_key_ = true;
  key_ = value.substr(0, kMaxKeyBytes + 1);
}

// Other schemes are not ours: a gateway may have its own.
void RequestHead::read_bearer(std::string_view value) {
  constexpr std::string_view kScheme = "bearer";
  if (value.size() < kScheme.size() || !is_token(value.substr(0, kScheme.size()), kScheme)) return;
  value.remove_prefix(kScheme.size());
  if (!value.empty() && value[0] != ' ') return;
  while (value.starts_with(' ')) value.remove_prefix(1);
  while (value.ends_with(' ')) value.remove_suffix(1);
  has_bearer_ = true;
  read_key(value);
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

void RequestHead::reset() {
  method_ = nullptr;
  timeout_ns_ = -1;
  bytes_ = 0;
  encoding_ = Encoding::identity;
  keep_metadata_ = bad_timeout_ = bad_binary_ = false;
  arm_.reset();
  trace_ = {};
  has_trace_ = false;
  if (has_key_) key_.clear();
  if (has_subject_) subject_.clear();
  has_key_ = has_bearer_ = has_subject_ = repeated_subject_ = false;
  ab_key_.reset();
  path_.clear();
  if (has_metadata_) Metadata().swap(metadata_);
  has_metadata_ = false;
}

}  // namespace fused_mlp::front
