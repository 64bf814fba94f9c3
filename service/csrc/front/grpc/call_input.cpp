// SPDX-License-Identifier: Apache-2.0
// The request of a call comes in: messages are read, handed over, or held back until their connection may go
// on.
#include <algorithm>
#include <exception>

#include "front/grpc/call.hpp"
#include "front/http2/connection.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {
namespace {

constexpr size_t kLeastUnreadBytes = 1u << 10;

}  // namespace

void Call::begin() {
  arrival_ns_ = loop_->now();
  rejection_ = rest_ ? head_.check_rest(loop_->limits()) : head_.check(loop_->limits());
  if (!rejection_ && !memory_.resize(accounts_->calls, kBytes + head_.memory_bytes())) {
    report_shortage(Shortage::calls);
    rejection_ = Rejection{200, kResourceExhausted, "too many open calls; retry later"};
  }
  if (rest_ && !rejection_ && head_.rest().content_length > static_cast<int64_t>(max_message_bytes())) {
    rejection_ = Rejection{413, kResourceExhausted, too_large_text()};
  }
  if (rejection_) return;  // sent when the request has ended, or by a later sweep
  if (head_.timeout_ns() >= 0) {
    deadline_ns_ = arrival_ns_ + head_.timeout_ns();
    sent_after_ns_ = connection_->send_time().known_ns();
  }
  reader_.start(max_message_bytes(), &loop_->assembly(), &accounts_->requests, head_.encoding(),
                &loop_->turn());
  if (rest_) reader_.start_body(head_.rest().content_length);
  Method& method = *head_.method();
  if (method.client_streams()) {
    most_in_flight_ = std::min(loop_->limits().max_stream_messages, method.most_in_flight());
    idle_since_ns_ = loop_->timer_now();
  } else {
    waiting_since_ns_ = loop_->timer_now();
  }
  method.on_start(*this);
}

size_t Call::max_message_bytes() const {
  return std::min(loop_->max_message_bytes(), head_.method()->max_message_bytes());
}

size_t Call::receive(const uint8_t* data, size_t size) {
  if (rest_) return receive_body(data, size);
  const uint8_t* const begin = data;
  Method* method = head_.method();
  bool over = false;
  if (unread_.empty()) over = read(data, size, &loop_->slabs());
  if (!over) {
    if (size != 0 && !finished_ && !rejection_) keep_unread(data, size);
    data += size;  // kept, or of a call that has ended: dropped
  }
  const auto taken = static_cast<size_t>(data - begin);
  if (method == nullptr || finished_ || rejection_ || !method->client_streams()) {
    connection_->session().consume(stream_id_, taken);
    return taken;
  }
  connection_->session().consume_connection(taken);
  withheld_bytes_ += taken;
  after_reading();
  return taken;
}

// Until nothing is left, the call must wait or has ended, or the turn is over. True: the last.
bool Call::read(const uint8_t*& data, size_t& size, SlabPool* slabs) {
  Method* method = head_.method();
  const bool streams = most_in_flight_ != 0;
  while ((size != 0 || reader_.unpacking()) && !finished_ && !rejection_) {
    if (streams && !reader_.unpacking() && must_wait()) return false;
    Message streamed;
    Message& message = streams ? streamed : message_;
    ReadError error = ReadError::none;
    if (!reader_.feed(data, size, slabs, message, error)) {
      if (error != ReadError::none) refuse_read(error);
      if (reader_.unpacking()) return true;
    } else if (streams) {
      ++messages_in_flight_;
      idle_since_ns_ = 0;
      has_message_ = true;
      method->on_message(*this, std::move(message));
      if (loop_->turn().over_after_step()) return true;
    } else if (has_message_) {
      refuse(kInvalidArgument, "expected one request message, got more");
    } else {
      has_message_ = true;
    }
  }
  return false;
}

bool Call::must_wait() const {
  return messages_in_flight_ >= most_in_flight_ || connection_->held_requests().must_hold();
}

// Bytes that wait cost what they cost the peer, whatever messages they make. Its window bounds them.
void Call::keep_unread(const uint8_t* data, size_t size) {
  PeerAccount& account = accounts_->requests;
  if (!make_room(unread_, size, kLeastUnreadBytes, SIZE_MAX, unread_charge_, account)) {
    return refuse_read(ReadError::no_memory_left);
  }
  unread_.append(data, size);
}

void Call::continue_reading() {
  if (most_in_flight_ == 0) return rest_ && !has_message_ ? end_body() : hand_over();
  ByteBuffer bytes;
  bytes.swap(unread_);
  const size_t size = bytes.size();
  const uint8_t* data = bytes.data();
  size_t rest = size;
  reading_ = true;  // a message that is answered at once is not the last
  try {
    read(data, rest, nullptr);
  } catch (const std::exception&) {
    reading_ = false;
    throw;
  }
  reading_ = false;
  if (finished_) return drop_request();
  bytes.consume(size - rest);
  if (bytes.empty()) {
    unread_charge_.release();
  } else {
    bytes.swap(unread_);
  }
  after_reading();
  if (reader_.unpacking()) connection_->held_requests().hold(*this);
  if (half_closed()) end_request();
}

void Call::after_reading() {
  HeldRequests& held = connection_->held_requests();
  if (has_unread()) {
    waiting_since_ns_ = 0;  // it waits for us
    // Else message_done() goes on, or its connection.
    if (!unread_.empty() && messages_in_flight_ < most_in_flight_) held.hold(*this);
    return;
  }
  held.remove(*this);
  if (!reader_.mid_message()) {
    waiting_since_ns_ = 0;
  } else if (waiting_since_ns_ == 0) {
    waiting_since_ns_ = loop_->timer_now();
  }
  open_window();
}

// A caller that streams faster than it is answered, or that does not read its answers, runs out of window.
void Call::open_window() {
  if (withheld_bytes_ == 0 || finished_ || reading_ || has_unread()) return;
  if (messages_in_flight_ >= most_in_flight_) return;
  HeldRequests& held = connection_->held_requests();
  if (held.must_hold()) return held.hold_window();
  connection_->session().consume_stream(stream_id_, withheld_bytes_);
  withheld_bytes_ = 0;
  connection_->mark_dirty();
}

void Call::message_done() {
  if (--messages_in_flight_ == 0) idle_since_ns_ = loop_->timer_now();
  if (connection_ == nullptr || reading_) return;
  if (unread_.empty()) return open_window();
  connection_->held_requests().hold(*this);
  connection_->mark_dirty();
}

void Call::half_close() {
  half_closed_ = true;
  waiting_since_ns_ = 0;
  if (finished_) return;
  if (rejection_) return reject();
  if (half_closed()) end_request();
}

void Call::end_request() {
  if (rest_) return end_body();
  if (reader_.mid_message()) return refuse(kInvalidArgument, "the request ended inside a message");
  if (most_in_flight_ != 0) return head_.method()->on_half_close(*this);
  if (!has_message_) return refuse(kInvalidArgument, "expected one request message, got none");
  HeldRequests& held = connection_->held_requests();
  held.must_hold() ? held.hold(*this) : hand_over();
}

void Call::hand_over() { head_.method()->on_message(*this, std::move(message_)); }

// Nothing more of it will be handed over.
void Call::drop_request() {
  if (reading_) return;  // continue_reading does
  connection_->held_requests().remove(*this);
  reader_.reset();
  message_.release();
  unread_.reset(0);
  unread_charge_.release();
}

}  // namespace fused_mlp::front
