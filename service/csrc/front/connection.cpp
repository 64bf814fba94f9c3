#include "front/connection.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>

#include "front/loop.hpp"
#include "front/session.hpp"

namespace fused_mlp::front {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int kReadsPerTurn = 8;                // then the other connections have theirs
constexpr size_t kKeptOutputBytes = 64u << 10;  // of an empty output buffer
constexpr int64_t kDrainNotice = 1 * kSecond;   // a peer that answers no ping has seen GOAWAY by then

int64_t nanos(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

bool past(int64_t since_ns, double limit_s, int64_t now_ns) {
  return limit_s > 0 && since_ns != 0 && now_ns - since_ns > nanos(limit_s);
}

}  // namespace

Connection::Connection(Loop& loop, int fd, const TlsContext* tls)
    : loop_(loop), transport_(fd, tls), born_ns_(loop.now()), heard_ns_(born_ns_), idle_since_ns_(born_ns_) {
  // Spread by a tenth, or all that connected at once would come back at once.
  const double age_s = loop.limits().max_connection_age_s;
  if (age_s > 0) age_limit_ns_ = nanos(age_s * (0.9 + 0.2 * static_cast<double>(fd % 16) / 15));
  if (!transport_.shaking_hands()) start_session();
}

Connection::~Connection() {
  if (session_ != nullptr) nghttp2_session_del(session_);
}

void Connection::start_session() {
  session_ = new_server_session(this, loop_.limits());
  mark_dirty();  // our SETTINGS
}

void Connection::close(End why) {
  if (closed_) return;
  closed_ = true;
  while (calls_ != nullptr) end_call(*calls_);
  loop_.on_closed(*this, why);
}

uint32_t Connection::epoll_events() const {
  uint32_t events = output_full() ? 0u : static_cast<uint32_t>(EPOLLIN);
  if (!out_.empty() || transport_.wants_write()) events |= EPOLLOUT;
  return events;
}

bool Connection::output_full() const { return out_.size() >= loop_.limits().max_output_bytes; }

// Reading goes on all the same, or the frames that open the windows would never be seen.
bool Connection::parked_full() const { return parked_bytes_ >= loop_.limits().max_output_bytes; }

void Connection::mark_dirty() {
  if (dirty || closed_) return;
  dirty = true;
  loop_.add_dirty(*this);
}

void Connection::on_readable() {
  if (transport_.shaking_hands()) {
    const Io state = transport_.handshake();
    if (state == Io::closed) return close(End::handshake);
    if (state == Io::blocked) return loop_.watch(*this);
    start_session();
  }
  if (can_go_on()) hand_over_held();
  SlabPool& slabs = loop_.slabs();
  for (int turn = 0; turn < kReadsPerTurn && !closed_ && !output_full(); ++turn) {
    uint8_t* place = slabs.place();
    const size_t room = slabs.room();
    const IoResult result = transport_.read(place, room);
    if (result.state == Io::blocked) return;
    if (result.state == Io::closed) return close(End::peer);
    slabs.commit(result.bytes);
    heard_ns_ = loop_.now();
    pinged_ns_ = 0;
    receive(place, result.bytes);
    if (result.bytes < room && !transport_.has_pending()) return;
  }
  visit_again_if_pending();
}

void Connection::receive(const uint8_t* data, size_t size) {
  const ssize_t taken = nghttp2_session_mem_recv(session_, data, size);
  current_ = nullptr;
  if (taken >= 0) return mark_dirty();
  if (taken == NGHTTP2_ERR_BAD_CLIENT_MAGIC) return close(End::handshake);  // HTTP/1, or no HTTP at all
  nghttp2_session_terminate_session(session_, flooded_ ? NGHTTP2_ENHANCE_YOUR_CALM : NGHTTP2_INTERNAL_ERROR);
  write();
  close(flooded_ || taken == NGHTTP2_ERR_FLOODED ? End::flood : End::protocol);
}

void Connection::write() {
  dirty = false;
  if (closed_ || session_ == nullptr) return;
  while (true) {
    if (nghttp2_session_send(session_) != 0) return close(End::protocol);
    if (out_.empty()) break;
    const IoResult result = transport_.write(out_.data(), out_.size());
    if (result.state == Io::closed) return close(End::peer);
    if (result.state == Io::blocked) {
      unsent_.wait(loop_.now());
      break;
    }
    unsent_.took(result.bytes, result.bytes == out_.size(), loop_.now());
    out_.consume(result.bytes);
  }
  if (out_.empty()) {
    out_.reset(kKeptOutputBytes);
    if (nghttp2_session_want_read(session_) == 0 && nghttp2_session_want_write(session_) == 0) {
      return close(drain_ != Drain::no ? End::done : peer_leaves_ ? End::peer : End::protocol);
    }
  }
  loop_.watch(*this);
  visit_again_if_pending();
}

// What TLS has read ahead is not reported by the socket, nor is what was held back here. While the output is
// full both have to wait.
void Connection::visit_again_if_pending() {
  if (closed_ || output_full()) return;
  if (transport_.has_pending() || can_go_on()) loop_.visit_again(*this);
}

void Connection::begin_drain() {
  if (session_ == nullptr) return close(End::done);
  if (drain_ != Drain::no) return;
  drain_ = Drain::noticed;
  drain_since_ns_ = loop_.now();
  // GOAWAY that refuses nothing yet, and a ping: once it is answered, the peer has seen GOAWAY and whatever
  // it sent before is here. Only then is the last call known.
  nghttp2_submit_shutdown_notice(session_);
  nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, nullptr);
  mark_dirty();
}

void Connection::finish_drain() {
  drain_ = Drain::final;
  nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session_),
                        NGHTTP2_NO_ERROR, nullptr, 0);
  mark_dirty();
}

void Connection::sweep(int64_t now_ns) {
  const Limits& limits = loop_.limits();
  if (!started_ && past(born_ns_, limits.handshake_timeout_s, now_ns)) return close(End::handshake);
  if (past(unsent_.since_ns(), limits.send_timeout_s, now_ns)) return close(End::slow_reader);
  if (past(pinged_ns_, limits.keepalive_timeout_s, now_ns)) return close(End::keepalive);
  if (session_ == nullptr) return;
  for (Call* call = calls_; call != nullptr;) {
    Call* next = call->next_;
    sweep_call(*call, now_ns);
    call = next;
  }
  if (pinged_ns_ == 0 && past(heard_ns_, limits.keepalive_s, now_ns)) {
    pinged_ns_ = now_ns;
    nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, nullptr);
    mark_dirty();
  }
  if (drain_ == Drain::noticed && now_ns - drain_since_ns_ > kDrainNotice) finish_drain();
  if (drain_ != Drain::no) return;
  const bool idle = open_calls_ == 0 && past(idle_since_ns_, limits.idle_timeout_s, now_ns);
  const bool old = age_limit_ns_ != 0 && now_ns - born_ns_ > age_limit_ns_;
  if (idle || old) begin_drain();
}

void Connection::sweep_call(Call& call, int64_t now_ns) {
  const Limits& limits = loop_.limits();
  if (past(call.unsent_.since_ns(), limits.send_timeout_s, now_ns)) {
    nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, call.stream_id_, NGHTTP2_CANCEL);
    refuse_held();
    mark_dirty();
  } else if (call.finished_) {
    if (call.answered_early_ && past(call.waiting_since_ns_, limits.receive_timeout_s, now_ns))
      stop_request(call);
  } else if (call.rejection_) {
    reject(call);
  } else if (call.deadline_ns_ != 0 && now_ns > call.deadline_ns_) {
    refuse(call, 200, kDeadlineExceeded, "the deadline passed before the answer was ready");
  } else if (past(call.waiting_since_ns_, limits.receive_timeout_s, now_ns)) {
    refuse(call, 200, kDeadlineExceeded, "the rest of the message did not come in time");
  }
}

std::string Connection::peer() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return "unknown";
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
    ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
    return "ipv4:" + std::string(text) + ":" + std::to_string(ntohs(v4->sin_port));
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
  ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
  return "ipv6:[" + std::string(text) + "]:" + std::to_string(ntohs(v6->sin6_port));
}

}  // namespace fused_mlp::front
