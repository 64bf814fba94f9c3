// SPDX-License-Identifier: Apache-2.0
// A call on the REST port: its body comes in, and an HTTP status with a body goes out.
#include <cstdlib>

#include "front/grpc/call.hpp"
#include "front/http2/connection.hpp"
#include "front/rest/rest_answer.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {
namespace {

constexpr std::string_view kJson = "application/json", kBinary = "application/octet-stream";
constexpr std::string_view kAllowedHeaders =
    "content-type, content-encoding, inference-header-content-length, x-request-timeout-ms, grpc-timeout, "
    "x-ab-key, x-fused-mlp-arm, x-fused-mlp-variant, traceparent, tracestate";

}  // namespace

size_t Call::receive_body(const uint8_t* data, size_t size) {
  if (!finished_ && !rejection_) {
    ReadError error = ReadError::none;
    if (!reader_.add_body(data, size, loop_->slabs(), error)) refuse_read(error);
  }
  connection_->consume(stream_id_, size);
  return size;
}

// The body is complete. What is packed is unpacked in steps, one in each turn of its connection.
void Call::end_body() {
  HeldRequests& held = connection_->held_requests();
  ReadError error = ReadError::none;
  if (!reader_.finish_body(message_, error)) {
    return error != ReadError::none ? refuse_read(error) : held.hold(*this);
  }
  has_message_ = true;
  held.must_hold() ? held.hold(*this) : hand_over();
}

// In one piece, when all of it is known.
void Call::send_rest() {
  if (!finished_) return;
  started_ = true;
  if (code_ != kOk) {
    out_.clear();
    write_error(text_, out_);
  }
  for (const auto& [name, value] : trailers_) {  // of Python, for what no gRPC code says
    if (name == ":status") http_status_ = std::atoi(value.c_str());
  }
  RestHead head(http_status_ != 0 ? http_status_ : http_status_of(code_), out_.size());
  const RestFields& asked = head_.rest();
  bool typed = http_status_ == 204;
  std::string retry_after_s;
  for (const auto& [name, value] : trailers_) {
    if (name[0] == ':') continue;
    head.add(name, value);
    typed |= name == "content-type";
    if (name == "inference-header-content-length") {
      head.add("content-type", kBinary);
      typed = true;
    } else if (name == "retry-after-ms") {
      retry_after_s = std::to_string(std::strtoull(value.c_str(), nullptr, 10) / 1000 + 1);
      head.add("retry-after", retry_after_s);
    }
  }
  if (!typed) head.add("content-type", kJson);
  if (http_status_ == 405 && trailers_.empty()) head.add("allow", asked.path.infer ? "POST" : "GET, POST");
  if (asked.origin != nullptr) {
    head.add("access-control-allow-origin", *asked.origin);
    head.add("vary", "origin");
    head.add("access-control-expose-headers", "inference-header-content-length, retry-after, retry-after-ms");
    if (asked.preflight) {
      head.add("access-control-allow-methods", "GET, POST");
      head.add("access-control-allow-headers", kAllowedHeaders);
      head.add("access-control-max-age", "600");
    }
  }
  if (asked.verb == Verb::head || http_status_ == 204) out_.clear();
  if (!out_.empty()) stall_.start(loop_->timer_now());
  count_parked();
  connection_->respond(*this, head);
  connection_->mark_dirty();
}

}  // namespace fused_mlp::front
