// SPDX-License-Identifier: Apache-2.0
#include "front/rest/rest_call.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "engine/status.hpp"
#include "front/http2/connection.hpp"
#include "front/rest/json_text.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {
namespace {

constexpr std::string_view kJson = "application/json", kBinary = "application/octet-stream";
constexpr std::string_view kAllowedHeaders =
    "content-type, content-encoding, inference-header-content-length, x-request-timeout-ms, grpc-timeout, "
    "authorization, x-api-key, x-ab-key, x-fused-mlp-arm, x-fused-mlp-variant, traceparent, tracestate";

constexpr std::array<int, kGrpcCodeCount> kHttpStatus = {200, 499, 500, 400, 504, 404, 409, 403, 429,
                                                         400, 409, 400, 501, 500, 503, 500, 401};

constexpr std::pair<int, std::string_view> kReasons[] = {{200, "OK"},
                                                         {204, "No Content"},
                                                         {400, "Bad Request"},
                                                         {401, "Unauthorized"},
                                                         {403, "Forbidden"},
                                                         {404, "Not Found"},
                                                         {405, "Method Not Allowed"},
                                                         {408, "Request Timeout"},
                                                         {413, "Content Too Large"},
                                                         {414, "URI Too Long"},
                                                         {415, "Unsupported Media Type"},
                                                         {429, "Too Many Requests"},
                                                         {431, "Request Header Fields Too Large"},
                                                         {500, "Internal Server Error"},
                                                         {501, "Not Implemented"},
                                                         {503, "Service Unavailable"},
                                                         {504, "Gateway Timeout"}};

std::string_view reason_phrase(int status) {
  const auto found = std::find_if(std::begin(kReasons), std::end(kReasons),
                                  [status](const auto& each) { return each.first == status; });
  return found == std::end(kReasons) ? "Error" : found->second;
}

}  // namespace

void RestCall::start_reading(const Method&) {
  reader_.start_body(own_head_.rest()->content_length);
  waiting_since_ns_ = loop_->timer_now();
}

size_t RestCall::receive(const uint8_t* data, size_t size) {
  if (!finished_ && !rejection_) {
    ReadError error = ReadError::none;
    if (!reader_.add_body(data, size, loop_->slabs(), error)) refuse_read(error);
  }
  connection_->consume(stream_id_, size);
  return size;
}

// The body is complete. A compressed body is unpacked in steps, one in each turn of its connection.
void RestCall::end_request() {
  HeldRequests& held = connection_->held_requests();
  ReadError error = ReadError::none;
  if (!reader_.finish_body(message_, error)) {
    return error != ReadError::none ? refuse_read(error) : held.calls.add(*this);
  }
  has_message_ = true;
  held.must_hold() ? held.calls.add(*this) : hand_over();
}

// The answer goes out in one piece, once all of it is known.
void RestCall::send() {
  if (!finished_) return;
  started_ = true;
  if (code_ != kOk) {
    out_.clear();
    write_error(text_, out_);
  }
  for (const auto& [name, value] : trailers_) {  // Python's, where no gRPC code has it
    if (name == ":status") http_status_ = std::atoi(value.c_str());
  }
  AnswerHead head(http_status_ != 0 ? http_status_ : http_status_of(code_), out_.size());
  const RestFields& asked = *own_head_.rest();
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
  if (code_ == kUnauthenticated) head.add("www-authenticate", "Bearer");
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

void RestCall::recycle() { loop_->rest_calls().give_back(this); }

void RestCall::reset() {
  Call::reset();
  own_head_.reset();
}

int http_status_of(int code) noexcept {
  return code >= 0 && code < kGrpcCodeCount ? kHttpStatus[static_cast<size_t>(code)] : 500;
}

void write_error(std::string_view text, ByteBuffer& out) {
  append(out, "{\"error\":");
  write_json_text(text, out);
  append(out, "}");
}

AnswerHead::AnswerHead(int status, size_t content_length) : status_(status) {
  fields_.reserve(8);
  const auto end = std::to_chars(status_text_, status_text_ + sizeof status_text_, status).ptr;
  add(":status", {status_text_, static_cast<size_t>(end - status_text_)});
  if (status == 204) return;  // it has no length either
  const auto length_end = std::to_chars(length_text_, length_text_ + sizeof length_text_, content_length).ptr;
  add("content-length", {length_text_, static_cast<size_t>(length_end - length_text_)});
}

void AnswerHead::add(std::string_view name, std::string_view value) {
  fields_.push_back({reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
                     reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(),
                     NGHTTP2_NV_FLAG_NONE});
}

void AnswerHead::write_http1(bool closes, ByteBuffer& out) const {
  append(out, "HTTP/1.1 ");
  append(out, {reinterpret_cast<const char*>(fields_[0].value), fields_[0].valuelen});
  append(out, " ");
  append(out, reason_phrase(status_));
  append(out, "\r\n");
  for (size_t i = 1; i < fields_.size(); ++i) {
    out.append(fields_[i].name, fields_[i].namelen);
    append(out, ": ");
    out.append(fields_[i].value, fields_[i].valuelen);
    append(out, "\r\n");
  }
  append(out, closes ? "connection: close\r\n\r\n" : "\r\n");
}

}  // namespace fused_mlp::front
