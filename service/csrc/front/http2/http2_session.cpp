// SPDX-License-Identifier: Apache-2.0
#include "front/http2/http2_session.hpp"

#include <algorithm>
#include <iterator>
#include <new>

#include "front/call/call.hpp"

namespace fused_mlp::front {
namespace {

constexpr int32_t kStreamWindow = 1 << 20;
constexpr int32_t kConnectionWindow = 16 << 20;
// To pings and SETTINGS, queued for a peer that does not read. More than FloodGuard lets through in one turn
// with the default limits, so that this bounds memory and never ends a connection by itself.
constexpr size_t kMaxAcknowledgements = 1000;

// The same for all sessions of the process; never freed.
nghttp2_option* make_option() {
  nghttp2_option* option = nullptr;
  if (nghttp2_option_new(&option) != 0) throw std::bad_alloc();
  nghttp2_option_set_no_auto_window_update(option, 1);
  nghttp2_option_set_no_closed_streams(option, 1);
  nghttp2_option_set_max_outbound_ack(option, kMaxAcknowledgements);
#ifdef FUSED_MLP_NGHTTP2_LIMITS_RESETS
  // Ours is a setting (max_resets_per_s); nghttp2's own, 33 a second, would end hedging clients.
  nghttp2_option_set_stream_reset_rate_limit(option, 1u << 30, 1u << 30);
#endif
  return option;
}

// How many bytes of a call's answer go into the next DATA frame. Connection::send_data copies them.
ssize_t read_answer(nghttp2_session*, int32_t, uint8_t*, size_t room, uint32_t* flags,
                    nghttp2_data_source* source, void*) {
  Call& call = *static_cast<Call*>(source->ptr);
  const size_t size = std::min(room, call.unsent_bytes());
  if (size == 0 && !call.finished()) return NGHTTP2_ERR_DEFERRED;
  *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
  if (size == call.unsent_bytes() && call.finished()) {
    *flags |= NGHTTP2_DATA_FLAG_EOF;
    try {
      if (call.send_trailers()) *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
    } catch (const std::bad_alloc&) {
      return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;  // nghttp2 resets the stream
    }
  }
  return static_cast<ssize_t>(size);
}

// For what is submitted: other errors mean a stream that has just gone.
void check(int error) {
  if (error == NGHTTP2_ERR_NOMEM) throw std::bad_alloc();
}

}  // namespace

void Http2Session::start(const nghttp2_session_callbacks* callbacks, void* user_data, const Limits& limits,
                         SessionMemory& memory) {
  static const nghttp2_option* option = make_option();
  nghttp2_session* session = nullptr;
  nghttp2_mem functions = memory.functions();  // copied
  if (nghttp2_session_server_new3(&session, callbacks, user_data, option, &functions) != 0) {
    throw std::bad_alloc();
  }
  session_.reset(session);
  const nghttp2_settings_entry settings[] = {
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kStreamWindow},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, static_cast<uint32_t>(limits.max_header_bytes)},
      {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},  // nghttp2 then keeps no priority tree
  };
  nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, settings, std::size(settings));
  nghttp2_session_set_local_window_size(session, NGHTTP2_FLAG_NONE, 0, kConnectionWindow);
}

void Http2Session::respond(Call& call, std::span<const nghttp2_nv> head) {
  const nghttp2_data_provider provider{{.ptr = &call}, read_answer};
  check(nghttp2_submit_response(session_.get(), call.stream_id(), head.data(), head.size(), &provider));
}

void Http2Session::respond_without_data(int32_t stream_id, std::span<const nghttp2_nv> head) {
  check(nghttp2_submit_response(session_.get(), stream_id, head.data(), head.size(), nullptr));
}

void Http2Session::submit_trailers(int32_t stream_id, std::span<const nghttp2_nv> trailers) {
  check(nghttp2_submit_trailer(session_.get(), stream_id, trailers.data(), trailers.size()));
}

void Http2Session::go_away(uint32_t error, std::string_view reason) {
  nghttp2_submit_goaway(session_.get(), NGHTTP2_FLAG_NONE,
                        nghttp2_session_get_last_proc_stream_id(session_.get()), error,
                        reinterpret_cast<const uint8_t*>(reason.data()), reason.size());
}

}  // namespace fused_mlp::front
