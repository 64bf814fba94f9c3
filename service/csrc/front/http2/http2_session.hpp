// SPDX-License-Identifier: Apache-2.0
// An nghttp2 server session: our options and SETTINGS, and everything we submit to it. What it receives goes
// to the callbacks of Connection.
#pragma once

#include <nghttp2/nghttp2.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "front/limits.hpp"
#include "front/memory/session_memory.hpp"

namespace fused_mlp::front {

class Call;

class Http2Session {
 public:
  // Until then nothing else may be called (a connection has no session during its TLS handshake).
  void start(const nghttp2_session_callbacks* callbacks, void* user_data, const Limits& limits,
             SessionMemory& memory);
  bool started() const { return session_ != nullptr; }

  ssize_t receive(const uint8_t* data, size_t size) {
    return nghttp2_session_mem_recv(session_.get(), data, size);
  }
  bool send() { return nghttp2_session_send(session_.get()) == 0; }
  bool wants_nothing() const {
    return nghttp2_session_want_read(session_.get()) == 0 && nghttp2_session_want_write(session_.get()) == 0;
  }
  Call* find(int32_t stream_id) const {
    return static_cast<Call*>(nghttp2_session_get_stream_user_data(session_.get(), stream_id));
  }

  // A response whose DATA frames are read from the call, and whose trailers the call submits after the last.
  void respond(Call& call, std::span<const nghttp2_nv> head);
  // A response that consists of its head.
  void respond_without_data(int32_t stream_id, std::span<const nghttp2_nv> head);
  void submit_trailers(int32_t stream_id, std::span<const nghttp2_nv> trailers);
  void resume(int32_t stream_id) { nghttp2_session_resume_data(session_.get(), stream_id); }
  void reset(int32_t stream_id, uint32_t error) {
    nghttp2_submit_rst_stream(session_.get(), NGHTTP2_FLAG_NONE, stream_id, error);
  }
  // Received bytes are dealt with: the peer gets that much window back.
  void consume(int32_t stream_id, size_t bytes) { nghttp2_session_consume(session_.get(), stream_id, bytes); }
  void consume_connection(size_t bytes) { nghttp2_session_consume_connection(session_.get(), bytes); }
  void consume_stream(int32_t stream_id, size_t bytes) {
    nghttp2_session_consume_stream(session_.get(), stream_id, bytes);
  }

  // `opaque`: 8 bytes that come back; null: zeros.
  void ping(const uint8_t* opaque = nullptr) {
    nghttp2_submit_ping(session_.get(), NGHTTP2_FLAG_NONE, opaque);
  }
  // GOAWAY that refuses nothing yet.
  void announce_shutdown() { nghttp2_submit_shutdown_notice(session_.get()); }
  // GOAWAY: calls that have not begun here by now never will, and their callers may retry them.
  void go_away(uint32_t error, std::string_view reason);

 private:
  struct Deleter {
    void operator()(nghttp2_session* session) const { nghttp2_session_del(session); }
  };
  std::unique_ptr<nghttp2_session, Deleter> session_;
};

}  // namespace fused_mlp::front
