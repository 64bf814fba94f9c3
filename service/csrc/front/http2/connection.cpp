// SPDX-License-Identifier: Apache-2.0
#include "front/http2/connection.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "front/rest/rest_call.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {
namespace {

constexpr size_t kFrameHeaderBytes = 9;
constexpr size_t kWriteQuota = 2u << 20;
constexpr int64_t kDrainNotice = 1'000'000'000;  // a peer that answers no ping has seen GOAWAY by then
constexpr int64_t kLinger = 1'000'000'000;       // for the peer to close its side
constexpr size_t kMaxDiscarded = 4u << 20;       // of what it sends meanwhile

}  // namespace

Connection::Connection(Loop& loop, Socket socket, const TlsContext* tls, std::shared_ptr<Seat> seat,
                       Protocol protocol)
    : loop_(loop),
      protocol_(protocol),
      seat_(std::move(seat)),
      transport_(std::move(socket), tls, protocol == Protocol::rest),
      accounts_(loop.peer_accounts(seat_.get())),
      out_(accounts_.answers, loop.limits().max_output_bytes),
      streams_(loop, accounts_, session_),
      flood_(loop.limits()),
      timers_(loop.limits(), loop.timer_now(), fd()) {
  set_idle_since(loop.now());
  if (!transport_.shaking_hands() && !rest()) start_session();
  // Nothing below throws.
  if (seat_ != nullptr) seat_->connection = this;
  ++accounts_.connections;
}

Connection::~Connection() {
  if (seat_ != nullptr) seat_->connection = nullptr;
  --accounts_.connections;
}

void Connection::set_idle_since(int64_t now_ns) {
  if (seat_ != nullptr) seat_->idle_since_ns.store(now_ns, std::memory_order_relaxed);
}

void Connection::start_http1() {
  http1_ = std::make_unique<Http1>(*this);
  if (drain_ == Drain::asked) http1_->begin_drain();
}

void Connection::respond(Call& call, const AnswerHead& head) {
  if (http1_ != nullptr) {
    http1_->respond(call, head);
  } else if (call.unsent_bytes() != 0) {
    session_.respond(call, head.fields());
  } else {
    session_.respond_without_data(call.stream_id(), head.fields());
  }
}

void Connection::start_session() {
  session_.start(callbacks(), this, loop_.limits(), loop_.session_memory());
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
  if (http1_ != nullptr) return http1_->fail(why, 503, reason_of(why));
  const EndWords& end = words(why);
  end_session(why, end.error, reason_of(why), end.goaway_text != nullptr ? end.goaway_text : reason_of(why));
}

void Connection::end_session(End why, uint32_t error, std::string_view reason, std::string_view text) {
  report(why, reason);
  session_.go_away(error, text);
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
  if (result.state == Io::closed || discarded_bytes_ > kMaxDiscarded) close(*leaving_);
}

uint32_t Connection::epoll_events() const {
  if (leaving_) return out_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT;
  uint32_t events = out_.full() ? 0u : static_cast<uint32_t>(EPOLLIN);
  if (must_not_read()) events = EPOLLRDHUP;  // or its peer could be gone unnoticed
  if (!out_.empty() || transport_.wants_write()) events |= EPOLLOUT;
  return events;
}

void Connection::mark_dirty() {
  if (dirty || closed_) return;
  dirty = true;
  loop_.add_dirty(*this);
}

// ---- Writing ----

void Connection::write() {
  dirty = false;
  if (closed_) return;
  if (leaving_) return flush();
  if (http1_ != nullptr) return http1_->write();
  if (!session_.started()) return;
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
      case NGHTTP2_HEADERS:
        c.flood_.on_headers_sent();
        [[fallthrough]];
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
          const std::string_view reason(reinterpret_cast<const char*>(frame->goaway.opaque_data),
                                        frame->goaway.opaque_data_len);
          c.report(End::protocol, reason.empty() ? reason_of(End::protocol) : reason);
        }
        break;
      default:
        break;
    }
    return 0;
  });
}

// The socket does not report bytes that were left over, bytes that TLS has read ahead, or requests that are
// held back here. All wait while the output is full.
void Connection::visit_again_if_pending() {
  if (closed_ || leaving_ || out_.full()) return;
  const bool reads = http1_ == nullptr || !http1_->busy();
  if (((has_rest() || transport_.has_pending()) && reads) || streams_.held().can_continue()) {
    loop_.visit_again(*this);
  }
}

void Connection::reset_stream(int32_t stream_id, uint32_t error) {
  if (http1_ != nullptr) {
    return http1_->reset(error == NGHTTP2_CANCEL           ? End::slow_reader
                         : error == NGHTTP2_INTERNAL_ERROR ? End::failed
                                                           : End::peer);
  }
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
  if (http1_ != nullptr) return http1_->sweep();
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
  if (http1_ != nullptr) return http1_->begin_drain();
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
  for (const Call* call = streams_.calls().first(); call != nullptr; call = OpenCalls::next(*call)) {
    parked += call->parked_bytes();
    calls += call->memory_bytes();
  }
  answers += parked + out_.charged_bytes() + streams_.held().expected_bytes;
  return parked == streams_.held().parked_bytes;
}

}  // namespace fused_mlp::front
