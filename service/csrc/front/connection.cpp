#include "front/connection.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <new>

#include "front/loop.hpp"

namespace fused_mlp::front {
namespace {

constexpr int kReadsPerTurn = 8;                 // then the other connections have theirs
constexpr int64_t kDrainNotice = 1'000'000'000;  // a peer that answers no ping has seen GOAWAY by then
constexpr size_t kFrameHeaderBytes = 9;

std::string_view text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

Connection& connection(void* self) { return *static_cast<Connection*>(self); }

bool is_request(const nghttp2_frame& frame) {
  return frame.hd.type == NGHTTP2_HEADERS && frame.headers.cat == NGHTTP2_HCAT_REQUEST;
}

}  // namespace

Connection::Connection(Loop& loop, int fd, const TlsContext* tls)
    : loop_(loop),
      transport_(fd, tls),
      out_(loop.limits().max_output_bytes),
      streams_(loop, session_),
      flood_(loop.limits()),
      timers_(loop.limits(), loop.now(), fd) {
  if (!transport_.shaking_hands()) start_session();
}

void Connection::start_session() {
  session_.start(callbacks(), this, loop_.limits());
  mark_dirty();  // our SETTINGS
}

void Connection::close(End why) {
  if (closed_) return;
  closed_ = true;
  streams_.end_all();
  loop_.on_closed(*this, why);
}

uint32_t Connection::epoll_events() const {
  uint32_t events = out_.full() ? 0u : static_cast<uint32_t>(EPOLLIN);
  if (!out_.empty() || transport_.wants_write()) events |= EPOLLOUT;
  return events;
}

void Connection::mark_dirty() {
  if (dirty || closed_) return;
  dirty = true;
  loop_.add_dirty(*this);
}

// ---- Reading ----

void Connection::on_readable() {
  if (transport_.shaking_hands()) {
    const Io state = transport_.handshake();
    if (state == Io::closed) return close(End::handshake);
    if (state == Io::blocked) return loop_.watch(*this);
    start_session();
  }
  if (streams_.held().can_continue()) streams_.continue_held();
  SlabPool& slabs = loop_.slabs();
  for (int turn = 0; turn < kReadsPerTurn && !closed_ && !out_.full(); ++turn) {
    uint8_t* place = slabs.place();
    const size_t room = slabs.room();
    const IoResult result = transport_.read(place, room);
    if (result.state == Io::blocked) return;
    if (result.state == Io::closed) return close(End::peer);
    slabs.commit(result.bytes);
    bump(loop_.stats().received_bytes, result.bytes);
    timers_.on_bytes(loop_.now());
    receive(place, result.bytes);
    if (result.bytes < room && !transport_.has_pending()) return;
  }
  visit_again_if_pending();
}

void Connection::receive(const uint8_t* data, size_t size) {
  const ssize_t taken = session_.receive(data, size);
  streams_.forget_last_found();
  if (taken >= 0) return mark_dirty();
  if (taken == NGHTTP2_ERR_BAD_CLIENT_MAGIC) return close(End::handshake);  // HTTP/1, or no HTTP at all
  session_.terminate(flooded_ ? NGHTTP2_ENHANCE_YOUR_CALM : NGHTTP2_INTERNAL_ERROR);
  write();
  close(flooded_ || taken == NGHTTP2_ERR_FLOODED ? End::flood : End::protocol);
}

int Connection::on_begin_headers(nghttp2_session* session, const nghttp2_frame* frame, void* self) {
  if (!is_request(*frame)) return 0;
  Connection& c = connection(self);
  Call& call = c.streams_.open(c, frame->hd.stream_id);
  return nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, &call);
}

int Connection::on_header(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name, size_t name_size,
                          const uint8_t* value, size_t value_size, uint8_t, void* self) {
  if (!is_request(*frame)) return 0;
  Connection& c = connection(self);
  if (Call* call = c.streams_.find(frame->hd.stream_id)) {
    call->head().field(text(name, name_size), text(value, value_size), c.loop_.limits(),
                       c.loop_.application());
  }
  return 0;
}

int Connection::on_data_chunk(nghttp2_session* session, uint8_t, int32_t stream_id, const uint8_t* data,
                              size_t size, void* self) {
  if (Call* call = connection(self).streams_.find(stream_id)) {
    call->receive(data, size);
  } else {
    nghttp2_session_consume(session, stream_id, size);
  }
  return 0;
}

int Connection::on_begin_frame(nghttp2_session*, const nghttp2_frame_hd* header, void* self) {
  Connection& c = connection(self);
  if (!FloodGuard::is_dropped(*header) || c.flood_.allow_control_frame(c.loop_.now())) return 0;
  return c.end_for_flood();
}

int Connection::on_frame_received(nghttp2_session*, const nghttp2_frame* frame, void* self) {
  Connection& c = connection(self);
  if (!c.allowed(*frame)) return c.end_for_flood();
  c.on_frame(*frame);
  return 0;
}

bool Connection::allowed(const nghttp2_frame& frame) {
  if (!FloodGuard::opens_little(frame)) return flood_.allow(frame, loop_.now());
  const Call* call = streams_.find(frame.hd.stream_id);
  return call == nullptr || call->unsent_bytes() == 0 || flood_.allow_control_frame(loop_.now());
}

int Connection::end_for_flood() {
  flooded_ = true;
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
    case NGHTTP2_GOAWAY:
      peer_leaves_ = true;
      return;
    case NGHTTP2_PING:
      if ((frame.hd.flags & NGHTTP2_FLAG_ACK) != 0 && drain_ == Drain::noticed) finish_drain();
      return;
    default:
      return;
  }
}

int Connection::on_stream_close(nghttp2_session* session, int32_t stream_id, uint32_t, void* self) {
  Connection& c = connection(self);
  if (Call* call = c.streams_.find(stream_id)) {
    nghttp2_session_set_stream_user_data(session, stream_id, nullptr);
    c.streams_.end(*call);
    if (c.streams_.empty()) c.timers_.on_last_call_ended(c.loop_.now());
  }
  return 0;
}

// ---- Writing ----

void Connection::write() {
  dirty = false;
  if (closed_ || !session_.started()) return;
  while (true) {
    if (!session_.send()) return close(End::protocol);
    if (out_.empty()) break;
    const IoResult result = out_.send(transport_, loop_.now());
    if (result.state == Io::closed) return close(End::peer);
    if (result.state == Io::blocked) break;
    bump(loop_.stats().sent_bytes, result.bytes);
  }
  if (out_.empty()) {
    out_.release_memory();
    if (session_.wants_nothing()) {
      return close(drain_ != Drain::no ? End::done : peer_leaves_ ? End::peer : End::protocol);
    }
  }
  loop_.watch(*this);
  visit_again_if_pending();
}

// The socket does not report what TLS has read ahead, nor requests that are held back here. Both wait while
// the output is full.
void Connection::visit_again_if_pending() {
  if (closed_ || out_.full()) return;
  if (transport_.has_pending() || streams_.held().can_continue()) loop_.visit_again(*this);
}

ssize_t Connection::send(nghttp2_session*, const uint8_t* data, size_t size, int, void* self) {
  Connection& c = connection(self);
  if (c.out_.full()) return NGHTTP2_ERR_WOULDBLOCK;
  c.out_.append(data, size);
  return static_cast<ssize_t>(size);
}

int Connection::send_data(nghttp2_session*, nghttp2_frame*, const uint8_t* header, size_t size,
                          nghttp2_data_source* source, void* self) {
  Connection& c = connection(self);
  if (c.out_.full()) return NGHTTP2_ERR_WOULDBLOCK;
  uint8_t* place = c.out_.extend(kFrameHeaderBytes + size);
  std::copy_n(header, kFrameHeaderBytes, place);
  static_cast<Call*>(source->ptr)->take_answer(place + kFrameHeaderBytes, size);
  return 0;
}

int Connection::on_frame_sent(nghttp2_session*, const nghttp2_frame* frame, void* self) {
  Connection& c = connection(self);
  if (frame->hd.type == NGHTTP2_HEADERS && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
    if (Call* call = c.streams_.find(frame->hd.stream_id)) call->on_answer_ended();
  } else if (frame->hd.type == NGHTTP2_RST_STREAM) {
    bump(c.loop_.stats().sent_resets);
    const bool provoked = frame->rst_stream.error_code != NGHTTP2_NO_ERROR;
    if (provoked && !c.flood_.allow_reset(c.loop_.now())) return c.end_for_flood();
  }
  return 0;
}

void Connection::reset_stream(int32_t stream_id, uint32_t error) {
  session_.reset(stream_id, error);
  mark_dirty();
}

void Connection::reset_stalled_stream(int32_t stream_id) {
  reset_stream(stream_id, NGHTTP2_CANCEL);
  streams_.refuse_held();
}

// ---- Time and drain ----

void Connection::sweep(int64_t now_ns) {
  if (const auto why = timers_.expired(out_.stalled_since_ns(), now_ns)) return close(*why);
  if (!session_.started()) return;
  streams_.sweep(now_ns);
  if (timers_.ping_due(now_ns)) {
    timers_.on_ping_sent(now_ns);
    session_.ping();
    mark_dirty();
  }
  if (drain_ == Drain::noticed && now_ns - drain_since_ns_ > kDrainNotice) finish_drain();
  if (drain_ == Drain::no && timers_.drain_due(!streams_.empty(), now_ns)) begin_drain();
}

void Connection::begin_drain() {
  if (!session_.started()) return close(End::done);
  if (drain_ != Drain::no) return;
  drain_ = Drain::noticed;
  drain_since_ns_ = loop_.now();
  // GOAWAY that refuses nothing yet, and a ping: once it is answered, the peer has seen GOAWAY and everything
  // it sent before is here. Only then is the last call known.
  session_.announce_shutdown();
  session_.ping();
  mark_dirty();
}

void Connection::finish_drain() {
  drain_ = Drain::final;
  session_.go_away();
  mark_dirty();
}

// The same for all sessions of the process; never freed.
const nghttp2_session_callbacks* Connection::callbacks() {
  static const nghttp2_session_callbacks* made = [] {
    nghttp2_session_callbacks* c = nullptr;
    if (nghttp2_session_callbacks_new(&c) != 0) throw std::bad_alloc();
    nghttp2_session_callbacks_set_on_begin_headers_callback(c, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(c, on_header);
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
