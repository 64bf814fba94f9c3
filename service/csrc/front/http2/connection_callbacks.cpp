// SPDX-License-Identifier: Apache-2.0
// What nghttp2 tells a connection: frames that came, in the order of a request, and frames that are sent.
#include <algorithm>
#include <exception>
#include <new>

#include "front/grpc/request_head.hpp"
#include "front/http2/connection.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {
namespace {

constexpr size_t kFrameHeaderBytes = 9;

std::string_view text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

Connection& connection(void* self) { return *static_cast<Connection*>(self); }

bool is_request(const nghttp2_frame& frame) {
  return frame.hd.type == NGHTTP2_HEADERS && frame.headers.cat == NGHTTP2_HCAT_REQUEST;
}

}  // namespace

template <class Action>
int Connection::guarded(void* self, Action action) noexcept {
  Connection& c = connection(self);
  try {
    return action(c);
  } catch (const std::exception&) {
    c.failed_ = true;
    return NGHTTP2_ERR_CALLBACK_FAILURE;
  }
}

int Connection::on_begin_headers(nghttp2_session* session, const nghttp2_frame* frame, void* self) {
  return guarded(self, [&](Connection& c) {
    c.header_bytes_ = 0;
    c.streams_.stop_heading();
    if (!is_request(*frame)) return 0;
    if (c.streams_.empty()) c.set_idle_since(0);
    Call* call = c.streams_.open(c, frame->hd.stream_id);
    c.flood_.on_stream_opened();
    if (call != nullptr) return nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, call);
    ++c.own_refusals_;
    c.loop_.on_shortage(Shortage::calls, c.fd());
    c.reset_stream(frame->hd.stream_id, NGHTTP2_REFUSED_STREAM);
    return 0;
  });
}

// A byte of HPACK can stand for a field of kilobytes.
inline int Connection::count_field(size_t name_size, size_t value_size) {
  header_bytes_ += name_size + value_size + kFieldOverhead;
  if (header_bytes_ > kHeaderMultiple * loop_.limits().max_header_bytes) {
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  }
  if (!loop_.turn().over_after_step()) return 0;
  paused_ = true;
  return NGHTTP2_ERR_PAUSE;
}

int Connection::on_header(nghttp2_session*, const nghttp2_frame*, const uint8_t* name, size_t name_size,
                          const uint8_t* value, size_t value_size, uint8_t, void* self) {
  return guarded(self, [&](Connection& c) {
    if (Call* call = c.streams_.heading()) {
      RequestHead& head = call->head();
      c.rest() ? head.rest_field(text(name, name_size), text(value, value_size), c.loop_.limits(),
                                 c.loop_.application())
               : head.field(text(name, name_size), text(value, value_size), c.loop_.limits(),
                            c.loop_.application());
    }
    return c.count_field(name_size, value_size);
  });
}

// One that nghttp2 does not pass on. Checking it took time all the same.
int Connection::on_invalid_header(nghttp2_session*, const nghttp2_frame*, const uint8_t*, size_t name_size,
                                  const uint8_t*, size_t value_size, uint8_t, void* self) {
  return connection(self).count_field(name_size, value_size);
}

int Connection::on_data_chunk(nghttp2_session* session, uint8_t, int32_t stream_id, const uint8_t* data,
                              size_t size, void* self) {
  return guarded(self, [&](Connection& c) -> int {
    Call* call = c.streams_.find(stream_id);
    if (call == nullptr) return nghttp2_session_consume(session, stream_id, size);
    const size_t taken = call->receive(data, size);
    if (taken < size || call->unpacking()) {
      c.chunk_ = {stream_id, size - taken, 0, data + size};
    } else if (!c.loop_.turn().over_after_step()) {
      return 0;
    }
    c.paused_ = true;
    return NGHTTP2_ERR_PAUSE;
  });
}

int Connection::on_begin_frame(nghttp2_session*, const nghttp2_frame_hd* header, void* self) {
  Connection& c = connection(self);
  const auto flood = c.flood_.on_frame_header(*header, c.loop_.now());
  return flood ? c.stop_for(*flood) : 0;
}

int Connection::on_frame_received(nghttp2_session*, const nghttp2_frame* frame, void* self) {
  return guarded(self, [&](Connection& c) {
    const int64_t now_ns = c.loop_.now();
    bool early = false;
    if (frame->hd.type == NGHTTP2_RST_STREAM) {
      const Call* call = c.streams_.find(frame->hd.stream_id);
      early = call != nullptr && c.is_early_reset(*call);
    }
    if (const auto flood = c.flood_.on_frame(*frame, early, now_ns)) return c.stop_for(*flood);
    c.on_frame(*frame);
    return 0;
  });
}

// A call with a deadline is reset when that has passed, and no limit may end a connection for it: it counts
// only if the deadline cannot have passed, or if the peer does not let us find out.
bool Connection::is_early_reset(const Call& call) {
  if (!call.premature(loop_.now())) return false;
  if (!call.has_deadline()) return true;
  const int64_t now_ns = loop_.read_clock();
  if (send_time_.ping_due(now_ns)) {
    send_time_.on_ping_sent(now_ns, loop_.timer_now());
    session_.ping(SendTime::kPing);
    mark_dirty();
  }
  return !call.may_have_expired(now_ns) ||
         send_time_.refuses(loop_.limits().keepalive_timeout_s, loop_.timer_now());
}

int Connection::stop_for(End why) {
  stopped_for_ = why;
  return NGHTTP2_ERR_CALLBACK_FAILURE;
}

void Connection::on_frame(const nghttp2_frame& frame) {
  switch (frame.hd.type) {
    case NGHTTP2_HEADERS:
    case NGHTTP2_DATA: {
      Call* call = streams_.find(frame.hd.stream_id);
      if (call == nullptr) return;
      if (is_request(frame)) call->begin();
      const bool last = (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
      return last ? call->half_close() : call->on_more_data();
    }
    case NGHTTP2_SETTINGS:
      return timers_.on_settings();
    case NGHTTP2_RST_STREAM:
      return bump(loop_.stats().received_resets);
    case NGHTTP2_PING:
      if ((frame.hd.flags & NGHTTP2_FLAG_ACK) == 0) return;
      if (SendTime::is_answer(frame.ping.opaque_data)) return send_time_.on_ping_answered();
      if (drain_ == Drain::noticed) drain_ = Drain::due;
      return;
    default:
      return;
  }
}

int Connection::on_stream_close(nghttp2_session* session, int32_t stream_id, uint32_t, void* self) {
  return guarded(self, [&](Connection& c) {
    if (Call* call = c.streams_.find(stream_id)) {
      nghttp2_session_set_stream_user_data(session, stream_id, nullptr);
      c.streams_.end(*call);
      if (c.streams_.empty()) {
        c.timers_.on_last_call_ended(c.loop_.timer_now());
        c.set_idle_since(c.loop_.now());
      }
    }
    return 0;
  });
}

// ---- Frames are sent ----

ssize_t Connection::send(nghttp2_session*, const uint8_t* data, size_t size, int, void* self) {
  return guarded(self, [&](Connection& c) {
    if (c.out_.full()) return static_cast<int>(NGHTTP2_ERR_WOULDBLOCK);
    c.out_.append(data, size);
    return static_cast<int>(size);
  });
}

int Connection::send_data(nghttp2_session*, nghttp2_frame*, const uint8_t* header, size_t size,
                          nghttp2_data_source* source, void* self) {
  return guarded(self, [&](Connection& c) -> int {
    if (c.out_.full()) return NGHTTP2_ERR_WOULDBLOCK;
    uint8_t* place = c.out_.extend(kFrameHeaderBytes + size);
    std::copy_n(header, kFrameHeaderBytes, place);
    auto* call = static_cast<Call*>(source->ptr);
    call->take_answer(place + kFrameHeaderBytes, size);
    c.flood_.on_data_sent(size, call->unsent_bytes() == 0);
    return 0;
  });
}

int Connection::on_frame_sent(nghttp2_session*, const nghttp2_frame* frame, void* self) {
  return guarded(self, [&](Connection& c) {
    switch (frame->hd.type) {
      case NGHTTP2_HEADERS: {
        c.flood_.on_headers_sent();
        if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) break;
        if (Call* call = c.streams_.find(frame->hd.stream_id)) call->on_answer_ended();
        break;
      }
      case NGHTTP2_DATA:  // the end of an answer of REST; gRPC's ends with its trailers
        if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) break;
        if (Call* call = c.streams_.find(frame->hd.stream_id)) call->on_answer_ended();
        break;
      case NGHTTP2_RST_STREAM: {
        bump(c.loop_.stats().sent_resets);
        const uint32_t error = frame->rst_stream.error_code;
        bool provoked = error != NGHTTP2_NO_ERROR && error != NGHTTP2_CANCEL;  // else our own decision
        if (error == NGHTTP2_REFUSED_STREAM && c.own_refusals_ != 0) {
          --c.own_refusals_;  // other peers may have used up the budget
          provoked = false;
        }
        if (const auto flood = provoked ? c.flood_.on_early_reset(c.loop_.now()) : std::nullopt)
          c.stopped_for_ = flood;
        break;
      }
      case NGHTTP2_GOAWAY:  // with an error: nghttp2's decision, and in its words
        if (frame->goaway.error_code != NGHTTP2_NO_ERROR) {
          const std::string_view reason = text(frame->goaway.opaque_data, frame->goaway.opaque_data_len);
          c.report(End::protocol, reason.empty() ? reason_of(End::protocol) : reason);
        }
        break;
      default:
        break;
    }
    return 0;
  });
}

// The same for all sessions of the process; never freed.
const nghttp2_session_callbacks* Connection::callbacks() {
  static const nghttp2_session_callbacks* made = [] {
    nghttp2_session_callbacks* c = nullptr;
    if (nghttp2_session_callbacks_new(&c) != 0) throw std::bad_alloc();
    nghttp2_session_callbacks_set_on_begin_headers_callback(c, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(c, on_header);
    nghttp2_session_callbacks_set_on_invalid_header_callback(c, on_invalid_header);
    nghttp2_session_callbacks_set_on_begin_frame_callback(c, on_begin_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(c, on_data_chunk);
    nghttp2_session_callbacks_set_on_frame_recv_callback(c, on_frame_received);
    nghttp2_session_callbacks_set_on_stream_close_callback(c, on_stream_close);
    nghttp2_session_callbacks_set_send_callback(c, send);
    nghttp2_session_callbacks_set_send_data_callback(c, send_data);
    nghttp2_session_callbacks_set_on_frame_send_callback(c, on_frame_sent);
    return c;
  }();
  return made;
}

}  // namespace fused_mlp::front
