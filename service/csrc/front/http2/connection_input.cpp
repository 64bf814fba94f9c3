// SPDX-License-Identifier: Apache-2.0
// The input of a connection: from the socket to nghttp2, and what is left over when a turn is over.
#include <algorithm>
#include <string>

#include "front/http2/connection.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {
namespace {

constexpr int kReadsPerTurn = 8;  // then the other connections have theirs, or sooner: turn.hpp

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
    const size_t room = http1_ == nullptr ? slabs.room() : std::min(slabs.room(), http1_->most_read());
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
  // Those that match came in this read or in ones before.
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

}  // namespace fused_mlp::front
