// SPDX-License-Identifier: Apache-2.0
#include "front/rest/rest_answer.hpp"

#include <array>
#include <charconv>

#include "engine/status.hpp"
#include "front/rest/json_text.hpp"

namespace fused_mlp::front {
namespace {

constexpr std::array<int, kGrpcCodeCount> kHttpStatus = {200, 499, 500, 400, 504, 404, 409, 403, 429,
                                                         400, 409, 400, 501, 500, 503, 500, 401};

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Error";
  }
}

}  // namespace

int http_status_of(int code) noexcept {
  return code >= 0 && code < kGrpcCodeCount ? kHttpStatus[static_cast<size_t>(code)] : 500;
}

void write_error(std::string_view text, ByteBuffer& out) {
  append(out, "{\"error\":");
  write_json_text(text, out);
  append(out, "}");
}

RestHead::RestHead(int status, size_t content_length) : status_(status) {
  fields_.reserve(8);
  const auto end = std::to_chars(status_text_, status_text_ + sizeof status_text_, status).ptr;
  add(":status", {status_text_, static_cast<size_t>(end - status_text_)});
  if (status == 204) return;  // which has no length either
  const auto length_end = std::to_chars(length_text_, length_text_ + sizeof length_text_, content_length).ptr;
  add("content-length", {length_text_, static_cast<size_t>(length_end - length_text_)});
}

void RestHead::add(std::string_view name, std::string_view value) {
  fields_.push_back({reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
                     reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(),
                     NGHTTP2_NV_FLAG_NONE});
}

void RestHead::write_http1(bool closes, ByteBuffer& out) const {
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
