#include "front/http2/connection.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "front/server/loop.hpp"

namespace fused_mlp::front {
namespace {

constexpr int kReadsPerTurn = 8;  // then the other connections have theirs, or sooner: turn.hpp
constexpr size_t kWriteQuota = 2u << 20;
// Past the limit, a request is refused in words when its headers have ended. Past this multiple it is reset,
// and nghttp2 validates no more of them.
constexpr size_t kHeaderMultiple = 4;
constexpr size_t kFieldOverhead = 32;            // as HPACK (RFC 7541, 4.1) counts a field
constexpr int64_t kDrainNotice = 1'000'000'000;  // a peer that answers no ping has seen GOAWAY by then
constexpr size_t kFrameHeaderBytes = 9;
constexpr int64_t kLinger = 1'000'000'000;   // for the peer to close its side
constexpr size_t kMostDiscarded = 4u << 20;  // of what it sends meanwhile

std::string_view text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

Connection& connection(void* self) { return *static_cast<Connection*>(self); }

bool is_request(const nghttp2_frame& frame) {
  return frame.hd.type == NGHTTP2_HEADERS && frame.headers.cat == NGHTTP2_HCAT_REQUEST;
}

}  // namespace

Connection::Connection(Loop& loop, Socket socket, const TlsContext* tls, std::shared_ptr<Seat> seat)
    : loop_(loop),
      seat_(std::move(seat)),
      transport_(std::move(socket), tls),
      accounts_(loop.peer_accounts(seat_.get())),
      out_(accounts_.answers, loop.limits().max_output_bytes),
      streams_(loop, accounts_, session_),
      flood_(loop.limits()),
      timers_(loop.limits(), loop.timer_now(), fd()) {
  if (seat_ != nullptr) seat_->connection = this;
  set_idle_since(loop.now());
  if (!transport_.shaking_hands()) start_session();
  ++accounts_.connections;  // nothing throws any more
}

Connection::~Connection() {
  if (seat_ != nullptr) seat_->connection = nullptr;
  --accounts_.connections;
}

void Connection::set_idle_since(int64_t now_ns) {
  if (seat_ != nullptr) seat_->idle_since_ns.store(now_ns, std::memory_order_relaxed);
}

void Connection::start_session() {
  session_.start(callbacks(), this, loop_.limits());
  mark_dirty();  // our SETTINGS
  if (drain_ == Drain::asked) {
    drain_ = Drain::no;
    begin_drain(drain_reason_);
  }
}

void Connection::close(End why, std::string_view reason) noexcept {
  if (closed_) return;
  closed_ = true;
  if (seat_ != nullptr) seat_->connection = nullptr;
  try {
    report(why, reason);
  } catch (const std::exception&) {
    bump(loop_.stats().failures);
  }
  while (!streams_.empty()) {
    try {
      streams_.end_all();
    } catch (const std::exception&) {  // of one call; it is off the list
      bump(loop_.stats().failures);
    }
  }
  loop_.on_closed(*this, why);
}

void Connection::give_way() { session_.started() ? go_away(End::crowded_out) : close(End::crowded_out); }

void Connection::fail() noexcept {
  bump(loop_.stats().failures);
  close(End::failed);
}

void Connection::report(End why, std::string_view reason) {
  if (reported_ || reason.empty()) return;
  reported_ = true;
  loop_.application().on_bad_end(why, peer_name(fd()), reason, loop_.now());
}

void Connection::go_away(End why) {
  report(why, reason_of(why));
  const EndWords& end = words(why);
  session_.go_away(end.error, end.goaway_text != nullptr ? end.goaway_text : reason_of(why));
  session_.send();
  leave(why);
}

void Connection::leave(End why) {
  if (closed_ || leaving_) return;
  leaving_ = why;
  leaving_since_ns_ = loop_.timer_now();
  streams_.end_all();
  flush();
}

void Connection::flush() {
  while (!out_.empty()) {
    const IoResult result = out_.send(transport_, loop_.timer_now());
    if (result.state == Io::closed) return close(*leaving_);
    if (result.state == Io::blocked) return loop_.watch(*this);
    bump(loop_.stats().sent_bytes, result.bytes);
  }
  transport_.finish_writing();
  loop_.watch(*this);
}

void Connection::discard_input() {
  const IoResult result = transport_.discard(loop_.slabs().place(), loop_.slabs().room());
  discarded_bytes_ += result.bytes;
  if (result.state == Io::closed || discarded_bytes_ > kMostDiscarded) close(*leaving_);
}

uint32_t Connection::epoll_events() const {
  if (leaving_) return out_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT;
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

// True: done, or there is nothing to do.
bool Connection::shake_hands() {
  if (!transport_.shaking_hands()) return true;
  const Io state = transport_.handshake();
  if (state == Io::done) {
    bump(loop_.stats().tls_handshakes);
    start_session();
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
  for (int i = 0; i < kReadsPerTurn && !out_.full(); ++i) {
    uint8_t* place = slabs.place();
    const size_t room = slabs.room();
    const bool resumed = has_rest();
    const IoResult result = read(place, room);
    if (result.state == Io::blocked) return;
    if (result.state == Io::closed) return close(End::peer);
    slabs.commit(result.bytes);
    const size_t done = process(place, result.bytes);
    if (closed_ || leaving_) return;
    resumed ? drop_rest(done) : keep_rest(place + done, result.bytes - done);
    if (paused_) break;
    if (!resumed && result.bytes < room && !transport_.has_pending()) return;
    if (loop_.turn().over()) break;
  }
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

int Connection::on_header(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name, size_t name_size,
                          const uint8_t* value, size_t value_size, uint8_t, void* self) {
  return guarded(self, [&](Connection& c) {
    Call* call = is_request(*frame) ? c.streams_.find(frame->hd.stream_id) : nullptr;
    if (call != nullptr) {
      call->head().field(text(name, name_size), text(value, value_size), c.loop_.limits(),
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

// A byte of HPACK can stand for a field of kilobytes.
int Connection::count_field(size_t name_size, size_t value_size) {
  header_bytes_ += name_size + value_size + kFieldOverhead;
  if (header_bytes_ > kHeaderMultiple * loop_.limits().max_header_bytes) {
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  }
  if (!loop_.turn().over_after_step()) return 0;
  paused_ = true;
  return NGHTTP2_ERR_PAUSE;
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
      early = call != nullptr && call->premature(now_ns);
    }
    if (const auto flood = c.flood_.on_frame(*frame, early, now_ns)) return c.stop_for(*flood);
    c.on_frame(*frame);
    return 0;
  });
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
      if ((frame.hd.flags & NGHTTP2_FLAG_ACK) != 0 && drain_ == Drain::noticed) drain_ = Drain::due;
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

// ---- Writing ----

void Connection::write() {
  dirty = false;
  if (closed_ || !session_.started()) return;
  if (leaving_) return flush();
  if (drain_ == Drain::due) finish_drain();
  size_t written = 0;
  while (true) {
    if (!session_.send()) return failed_ ? fail() : close(End::protocol);
    if (stopped_for_) return go_away(*stopped_for_);
    if (out_.empty() || written >= kWriteQuota) break;  // what is left goes when epoll says EPOLLOUT
    const IoResult result = out_.send(transport_, loop_.timer_now());
    if (result.state == Io::closed) return close(End::peer);
    if (result.state == Io::blocked) break;
    written += result.bytes;
    bump(loop_.stats().sent_bytes, result.bytes);
  }
  out_.settle();
  if (out_.empty() && session_.wants_nothing()) {
    // Reported: nghttp2 has found a mistake. Not drained: the peer sent GOAWAY.
    return leave(reported_ ? End::protocol : drain_ != Drain::no ? End::done : End::peer);
  }
  loop_.watch(*this);
  visit_again_if_pending();
}

// The socket does not report what was left over, what TLS has read ahead, nor requests that are held back
// here. All wait while the output is full.
void Connection::visit_again_if_pending() {
  if (closed_ || leaving_ || out_.full()) return;
  if (has_rest() || transport_.has_pending() || streams_.held().can_continue()) loop_.visit_again(*this);
}

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

void Connection::reset_stream(int32_t stream_id, uint32_t error) {
  session_.reset(stream_id, error);
  mark_dirty();
}

void Connection::reset_stalled_stream(int32_t stream_id) {
  reset_stream(stream_id, NGHTTP2_CANCEL);
  streams_.refuse_held();
}

// ---- Time and drain ----

void Connection::sweep() {
  spent_ns /= 2;
  const int64_t now_ns = loop_.timer_now();
  if (leaving_) {
    if (now_ns - leaving_since_ns_ > kLinger) close(*leaving_);
    return;
  }
  if (const auto why = timers_.expired(out_.stalled_since_ns(), now_ns)) {
    if (transport_.shaking_hands()) bump(loop_.stats().tls_failures[static_cast<size_t>(TlsFailure::closed)]);
    return session_.started() && *why != End::slow_reader ? go_away(*why) : close(*why);
  }
  out_.sweep();
  if (!session_.started()) {
    if (drain_ == Drain::asked && now_ns - drain_since_ns_ > kDrainNotice) close(End::done);
    return;
  }
  if (elapsed(cursor_.header_block_since_ns(), loop_.limits().receive_timeout_s, now_ns)) {
    return go_away(End::slow_headers);
  }
  streams_.sweep();
  // Memory that other connections have given back may let this one go on.
  loop_.watch(*this);
  visit_again_if_pending();
  if (timers_.ping_due(now_ns)) {
    timers_.on_ping_sent(now_ns);
    session_.ping();
    mark_dirty();
  }
  if (drain_ == Drain::noticed && now_ns - drain_since_ns_ > kDrainNotice) {
    drain_ = Drain::due;
    mark_dirty();
  }
  if (drain_ != Drain::no) return;
  if (const char* reason = timers_.drain_due(!streams_.empty(), now_ns)) begin_drain(reason);
}

void Connection::begin_drain(const char* reason) {
  if (drain_ != Drain::no || leaving_) return;
  drain_reason_ = reason;
  drain_since_ns_ = loop_.timer_now();
  if (!session_.started()) {
    drain_ = Drain::asked;
    return;
  }
  drain_ = Drain::noticed;
  // GOAWAY that refuses nothing yet, and a ping: once it is answered, the peer has seen GOAWAY and everything
  // it sent before is here. Only then is the last call known.
  session_.announce_shutdown();
  session_.ping();
  mark_dirty();
}

// Right before it is sent: calls that were read by now are answered. Later ones nghttp2 ignores, and their
// callers retry them elsewhere.
void Connection::finish_drain() {
  drain_ = Drain::final;
  session_.go_away(NGHTTP2_NO_ERROR, drain_reason_);
}

bool Connection::count_memory(size_t& answers, size_t& calls) const {
  size_t parked = 0;
  for (const Call* call = streams_.calls().first(); call != nullptr; call = CallList::next(*call)) {
    parked += call->parked_bytes();
    calls += call->memory_bytes();
  }
  answers += parked + out_.charged_bytes() + streams_.held().expected_bytes();
  return parked == streams_.held().parked_bytes();
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
