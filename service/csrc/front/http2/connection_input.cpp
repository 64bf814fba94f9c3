// SPDX-License-Identifier: Apache-2.0
// The input of a connection: bytes go from the socket to nghttp2, its callbacks hand frames to calls, and the
// rest of the input waits when a turn is over.
#include <algorithm>
#include <new>
#include <string>

#include "front/http2/connection.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {
namespace {

constexpr int kReadsPerTurn = 8;  // then the other connections have theirs, or sooner: turn.hpp

std::string_view text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

bool is_request(const nghttp2_frame& frame) {
  return frame.hd.type == NGHTTP2_HEADERS && frame.headers.cat == NGHTTP2_HCAT_REQUEST;
}

}  // namespace

// True: done, or there is nothing to do.
bool Connection::shake_hands() {
  if (!transport_.shaking_hands()) return true;
  const Io state = transport_.handshake();
  if (state == Io::done) {
    bump(loop_.stats().tls_handshakes);
    if (rest() && !transport_.speaks_http2()) {
      start_http1();
    } else {
      start_session();
    }
    return true;
  }
  if (state == Io::blocked) {
    loop_.watch(*this);
    return false;
  }
  const auto failure = static_cast<size_t>(transport_.handshake_failure());
  bump(loop_.stats().tls_failures[failure]);
  if (transport_.handshake_failure() == TlsFailure::closed) {
    close(End::peer);
  } else {
    close(End::handshake, std::string("TLS handshake: ") + kTlsFailureNames[failure]);
  }
  return false;
}

void Connection::on_readable() {
  if (leaving_) return discard_input();
  if (!shake_hands()) return;
  if (streams_.held().can_continue()) {
    streams_.continue_held();
    mark_dirty();  // write() looks whether more is held
  }
  SlabPool& slabs = loop_.slabs();
  for (int i = 0; i < kReadsPerTurn && !out_.full() && !must_not_read(); ++i) {
    uint8_t* place = slabs.place();
    const size_t room = http1_ == nullptr ? slabs.room() : std::min(slabs.room(), http1_->max_read());
    const bool resumed = has_rest();
    const IoResult result = read(place, room);
    if (result.state == Io::blocked) return;
    if (result.state == Io::closed) return close(End::peer);
    slabs.commit(result.bytes);
    const size_t done = process(place, result.bytes);
    if (closed_ || leaving_) return;
    resumed ? drop_rest(done) : keep_rest(place + done, result.bytes - done);
    if (paused_ || (http1_ != nullptr && http1_->busy() && done < result.bytes)) break;
    if (!resumed && result.bytes < room && !transport_.has_pending()) return;
    if (loop_.turn().over()) break;
  }
  if (must_not_read()) loop_.watch(*this);
  visit_again_if_pending();
}

// From what was left over, or from the socket.
IoResult Connection::read(uint8_t* place, size_t room) {
  if (has_rest()) {
    const size_t size = std::min(room, rest_.size());
    std::copy_n(rest_.data(), size, place);
    return {Io::done, size};
  }
  const IoResult result = transport_.read(place, room);
  if (result.state != Io::done) return result;
  bump(loop_.stats().received_bytes, result.bytes);
  timers_.on_bytes(loop_.timer_now());
  send_time_.on_bytes(loop_.timer_now());
  return result;
}

void Connection::keep_rest(const uint8_t* data, size_t size) {
  if (size == 0) return;
  if (!make_room(rest_, size, 0, 0, rest_charge_, accounts_.requests)) {
    // Its address has used up its share, but this is at most one read, and calls that hold more go on: only
    // when the budget of all is used up must the connection go.
    if (loop_.accounts().requests.left() < size) return go_away(End::no_memory_left);
    rest_charge_.resize_anyway(accounts_.requests, size);
    rest_.reserve(size);
  }
  rest_.append(data, size);
}

void Connection::drop_rest(size_t size) {
  rest_.consume(size);
  if (has_rest()) return;
  rest_.reset(0);
  rest_charge_.release();
}

// Returns how many bytes were dealt with: all, unless the turn is over (paused_). Then what is left must come
// again before anything new.
size_t Connection::process(const uint8_t* data, size_t size) {
  if (http1_ != nullptr) return http1_->process(data, size);
  return session_.started() ? process_http2(data, size) : choose_protocol(data, size);
}

// The REST port without TLS: HTTP/2 begins with its preface, of which three bytes tell it from any HTTP/1.1.
size_t Connection::choose_protocol(const uint8_t* data, size_t size) {
  constexpr std::string_view kPreface = "PRI";
  size_t taken = 0;
  while (taken < size && preface_bytes_ < kPreface.size() &&
         data[taken] == static_cast<uint8_t>(kPreface[preface_bytes_])) {
    ++taken;
    ++preface_bytes_;
  }
  if (taken == size && preface_bytes_ < kPreface.size()) return size;
  if (preface_bytes_ == kPreface.size()) {
    start_session();
  } else {
    start_http1();
  }
  // The bytes that match came in this read or in earlier ones.
  process(reinterpret_cast<const uint8_t*>(kPreface.data()), preface_bytes_);
  return closed_ || leaving_ ? size : taken + process(data + taken, size - taken);
}

size_t Connection::process_http2(const uint8_t* data, size_t size) {
  paused_ = false;
  const uint8_t* at = data;
  if (chunk_.stream_id != 0 && !finish_chunk(at, data + size)) {
    return static_cast<size_t>(at - data);
  }
  const ssize_t taken = session_.receive(at, static_cast<size_t>(data + size - at));
  streams_.forget_last_found();
  if (taken < 0) {
    end_broken(taken);
    return size;
  }
  cursor_.advance(at, static_cast<size_t>(taken), loop_.timer_now());
  mark_dirty();
  if (const FrameMistake* mistake = cursor_.mistake()) {
    end_session(End::protocol, mistake->error, mistake->text, mistake->text);
    return size;
  }
  for (size_t unknown = cursor_.take_unknown(); unknown != 0; --unknown) {
    const auto flood = flood_.on_unknown_frame(loop_.now());
    if (!flood) continue;
    go_away(*flood);
    return size;
  }
  // nghttp2 goes on inflating what it has reset, to keep the state of HPACK.
  if (cursor_.header_block_bytes() > kHeaderMultiple * loop_.limits().max_header_bytes) {
    go_away(End::headers);
    return size;
  }
  at += taken;
  if (chunk_.stream_id != 0) {
    chunk_.padding = static_cast<size_t>(at - chunk_.end);
    at = chunk_.end - chunk_.bytes;
  }
  return static_cast<size_t>(at - data);
}

// Hands over the rest of a DATA frame that nghttp2 has given us already. False: there is still some left.
bool Connection::finish_chunk(const uint8_t*& data, const uint8_t* end) {
  const size_t size = std::min(chunk_.bytes, static_cast<size_t>(end - data));
  size_t taken = size;
  Call* call = streams_.find(chunk_.stream_id);
  if (call != nullptr) {
    taken = call->receive(data, size);
    paused_ = taken < size || call->unpacking();
  } else {
    session_.consume_connection(size);
  }
  streams_.forget_last_found();
  mark_dirty();
  data += taken;
  chunk_.bytes -= taken;
  if (paused_ || chunk_.bytes != 0) return false;
  const size_t padding = std::min(chunk_.padding, static_cast<size_t>(end - data));
  data += padding;
  chunk_.padding -= padding;
  if (chunk_.padding != 0) return false;
  chunk_.stream_id = 0;
  return true;
}

void Connection::end_broken(ssize_t error) {
  if (failed_) return fail();
  if (error == NGHTTP2_ERR_BAD_CLIENT_MAGIC)
    return close(End::handshake, "not HTTP/2, or TLS to a port without it");
  if (error == NGHTTP2_ERR_FLOODED)
    stopped_for_ = End::control_frames;  // acknowledgements that it does not read
  go_away(stopped_for_.value_or(End::protocol));
}

// ---- Frames that came, in the order of a request ----

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
      call->head().field(text(name, name_size), text(value, value_size), c.loop_.limits(),
                         c.loop_.application());
    }
    return c.count_field(name_size, value_size);
  });
}

// An invalid field, which nghttp2 drops. Checking it took time, so it counts.
int Connection::on_invalid_header(nghttp2_session*, const nghttp2_frame*, const uint8_t*, size_t name_size,
                                  const uint8_t*, size_t value_size, uint8_t, void* self) {
  return static_cast<Connection*>(self)->count_field(name_size, value_size);
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
  Connection& c = *static_cast<Connection*>(self);
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
