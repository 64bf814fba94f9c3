#include "front/session.hpp"

#include <algorithm>
#include <iterator>
#include <new>

#include "front/connection.hpp"
#include "front/loop.hpp"

namespace fused_mlp::front {
namespace {

constexpr int32_t kStreamWindow = 1 << 20;
constexpr int32_t kConnectionWindow = 16 << 20;
constexpr uint32_t kFrameBytes = 64u << 10;
constexpr size_t kFrameHeaderBytes = 9;
constexpr int32_t kTinyOpening = 1024;         // of a stream's window, while more is waiting for it
constexpr size_t kMostAcknowledgements = 256;  // to pings and settings, waiting for a peer that does not read

std::string_view text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace

// All run inside nghttp2_session_mem_recv or nghttp2_session_send, on the loop's thread.
struct SessionCallbacks {
  static Connection& self(void* user_data) { return *static_cast<Connection*>(user_data); }

  static int on_begin_headers(nghttp2_session* session, const nghttp2_frame* frame, void* user_data) {
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
    Connection& c = self(user_data);
    Call* call = c.loop_.calls().take();
    call->connection_ = &c;
    call->stream_id_ = frame->hd.stream_id;
    call->next_ = c.calls_;
    if (c.calls_ != nullptr) c.calls_->previous_ = call;
    c.calls_ = c.current_ = call;
    ++c.open_calls_;
    bump(c.loop_.stats().calls);
    bump(c.loop_.stats().open_calls);
    return nghttp2_session_set_stream_user_data(session, call->stream_id_, call);
  }

  static int on_header(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name, size_t name_size,
                       const uint8_t* value, size_t value_size, uint8_t, void* user_data) {
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
    Connection& c = self(user_data);
    if (Call* call = c.find(frame->hd.stream_id)) {
      call->head_.field(text(name, name_size), text(value, value_size), c.loop_.limits(),
                        c.loop_.application());
    }
    return 0;
  }

  static int on_data_chunk(nghttp2_session* session, uint8_t, int32_t stream_id, const uint8_t* data,
                           size_t size, void* user_data) {
    Connection& c = self(user_data);
    if (Call* call = c.find(stream_id)) {
      c.take_data(*call, data, size);
    } else {
      nghttp2_session_consume(session, stream_id, size);
    }
    return 0;
  }

  // What a peer can send for nothing is counted; past the limit the connection ends.
  static bool allowed(Connection& c, const nghttp2_frame& frame) {
    const Limits& limits = c.loop_.limits();
    const int64_t now_ns = c.loop_.now();
    switch (frame.hd.type) {
      case NGHTTP2_HEADERS:
        return true;
      case NGHTTP2_WINDOW_UPDATE: {
        // Those of the connection, and of streams for which nothing waits, come with every call of grpcio.
        if (frame.hd.stream_id == 0 || frame.window_update.window_size_increment >= kTinyOpening) return true;
        const Call* call = c.find(frame.hd.stream_id);
        return call == nullptr || call->out_.empty() ||
               c.control_frames_.allow(now_ns, limits.max_control_frames_per_s);
      }
      case NGHTTP2_DATA:
        return frame.hd.length != 0 || (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) != 0 ||
               c.control_frames_.allow(now_ns, limits.max_control_frames_per_s);
      case NGHTTP2_RST_STREAM:
        return c.resets_.allow(now_ns, limits.max_resets_per_s);
      case NGHTTP2_PING:
        return c.pings_.allow(now_ns, limits.max_pings_per_s);
      case NGHTTP2_SETTINGS:
        return c.settings_.allow(now_ns, limits.max_settings_per_s);
      default:
        return true;
    }
  }

  // Frames that nghttp2 drops by itself (PRIORITY, unknown types) are seen here only.
  static int on_begin_frame(nghttp2_session*, const nghttp2_frame_hd* header, void* user_data) {
    Connection& c = self(user_data);
    const bool dropped = header->type == NGHTTP2_PRIORITY || header->type > NGHTTP2_CONTINUATION;
    if (!dropped || c.control_frames_.allow(c.loop_.now(), c.loop_.limits().max_control_frames_per_s))
      return 0;
    c.flooded_ = true;
    return NGHTTP2_ERR_CALLBACK_FAILURE;
  }

  static int on_frame(nghttp2_session*, const nghttp2_frame* frame, void* user_data) {
    Connection& c = self(user_data);
    if (!allowed(c, *frame)) {
      c.flooded_ = true;
      return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
    switch (frame->hd.type) {
      case NGHTTP2_HEADERS:
      case NGHTTP2_DATA: {
        Call* call = c.find(frame->hd.stream_id);
        if (call == nullptr) return 0;
        if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
          c.begin_call(*call);
        }
        if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
          c.take_half_close(*call);
        } else if (call->answered_early_) {
          c.stop_request(*call);
        }
        return 0;
      }
      case NGHTTP2_SETTINGS:
        c.started_ = true;
        return 0;
      case NGHTTP2_GOAWAY:
        c.peer_leaves_ = true;
        return 0;
      case NGHTTP2_PING:
        if ((frame->hd.flags & NGHTTP2_FLAG_ACK) != 0 && c.drain_ == Connection::Drain::noticed) {
          c.finish_drain();
        }
        return 0;
      default:
        return 0;
    }
  }

  static int on_frame_sent(nghttp2_session*, const nghttp2_frame* frame, void* user_data) {
    Connection& c = self(user_data);
    if (frame->hd.type == NGHTTP2_HEADERS && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
      Call* call = c.find(frame->hd.stream_id);
      if (call != nullptr && !call->half_closed_) {
        call->answered_early_ = true;
        call->waiting_since_ns_ = c.loop_.now();
      }
    } else if (frame->hd.type == NGHTTP2_RST_STREAM && frame->rst_stream.error_code != NGHTTP2_NO_ERROR) {
      // A peer can also make us do the resetting; it shall not gain by that.
      if (!c.resets_.allow(c.loop_.now(), c.loop_.limits().max_resets_per_s)) {
        c.flooded_ = true;
        return NGHTTP2_ERR_CALLBACK_FAILURE;
      }
    }
    return 0;
  }

  static int on_stream_close(nghttp2_session* session, int32_t stream_id, uint32_t, void* user_data) {
    Connection& c = self(user_data);
    Call* call = c.find(stream_id);
    if (call != nullptr) {
      nghttp2_session_set_stream_user_data(session, stream_id, nullptr);
      c.end_call(*call);
    }
    return 0;
  }

  static ssize_t send(nghttp2_session*, const uint8_t* data, size_t size, int, void* user_data) {
    Connection& c = self(user_data);
    if (c.output_full()) return NGHTTP2_ERR_WOULDBLOCK;
    c.out_.append(data, size);
    return static_cast<ssize_t>(size);
  }

  static int send_data(nghttp2_session*, nghttp2_frame*, const uint8_t* header, size_t size,
                       nghttp2_data_source* source, void* user_data) {
    Connection& c = self(user_data);
    if (c.output_full()) return NGHTTP2_ERR_WOULDBLOCK;
    Call& call = *static_cast<Call*>(source->ptr);
    uint8_t* place = c.out_.extend(kFrameHeaderBytes + size);
    std::copy_n(header, kFrameHeaderBytes, place);
    std::copy_n(call.out_.data(), size, place + kFrameHeaderBytes);
    call.out_.consume(size);
    call.unsent_.took(size, call.out_.empty(), c.loop_.now());
    c.count_parked(call);
    if (!call.finished_) {
      if (call.withheld_bytes_ != 0) c.let_in(call);
      call.head_.method()->on_sent(call);
    }
    return 0;
  }

  static ssize_t read(Connection& c, Call& call, size_t room, uint32_t* flags) {
    const size_t n = std::min(room, call.out_.size());
    if (n == 0 && !call.finished_) return NGHTTP2_ERR_DEFERRED;
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (n == call.out_.size() && call.finished_) {
      *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
      c.submit_trailers(call);
    }
    return static_cast<ssize_t>(n);
  }
};

ssize_t read_answer(nghttp2_session*, int32_t, uint8_t*, size_t size, uint32_t* flags,
                    nghttp2_data_source* source, void* connection) {
  return SessionCallbacks::read(*static_cast<Connection*>(connection), *static_cast<Call*>(source->ptr), size,
                                flags);
}

namespace {

// The same for all sessions of the process; never freed.
struct SessionSetup {
  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_option* option = nullptr;

  SessionSetup() {
    if (nghttp2_session_callbacks_new(&callbacks) != 0 || nghttp2_option_new(&option) != 0) {
      throw std::bad_alloc();
    }
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, SessionCallbacks::on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, SessionCallbacks::on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, SessionCallbacks::on_data_chunk);
    nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks, SessionCallbacks::on_begin_frame);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, SessionCallbacks::on_frame);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, SessionCallbacks::on_frame_sent);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, SessionCallbacks::on_stream_close);
    nghttp2_session_callbacks_set_send_callback(callbacks, SessionCallbacks::send);
    nghttp2_session_callbacks_set_send_data_callback(callbacks, SessionCallbacks::send_data);
    nghttp2_option_set_no_auto_window_update(option, 1);
    nghttp2_option_set_no_closed_streams(option, 1);
    nghttp2_option_set_max_outbound_ack(option, kMostAcknowledgements);
#ifdef FUSED_MLP_NGHTTP2_LIMITS_RESETS
    // Ours is a setting (max_resets_per_s); nghttp2's own, 33 a second, would end hedging clients.
    nghttp2_option_set_stream_reset_rate_limit(option, 1u << 30, 1u << 30);
#endif
  }
};

}  // namespace

nghttp2_session* new_server_session(Connection* connection, const Limits& limits) {
  static const SessionSetup setup;
  nghttp2_session* session = nullptr;
  if (nghttp2_session_server_new2(&session, setup.callbacks, connection, setup.option) != 0) {
    throw std::bad_alloc();
  }
  const nghttp2_settings_entry settings[] = {
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kStreamWindow},
      {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, kFrameBytes},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, static_cast<uint32_t>(limits.max_header_bytes)},
      {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},  // also spares nghttp2 the priority tree
  };
  nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, settings, std::size(settings));
  nghttp2_session_set_local_window_size(session, NGHTTP2_FLAG_NONE, 0, kConnectionWindow);
  return session;
}

}  // namespace fused_mlp::front
