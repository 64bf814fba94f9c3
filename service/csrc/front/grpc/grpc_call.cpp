// SPDX-License-Identifier: Apache-2.0
#include "front/grpc/grpc_call.hpp"

#include <algorithm>
#include <exception>

#include "front/grpc/framing.hpp"
#include "front/http2/connection.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {
namespace {

constexpr size_t kMinUnreadBytes = 1u << 10;

}  // namespace

void GrpcCall::start_reading(const Method& method) {
  if (!method.client_streams()) return void(waiting_since_ns_ = loop_->timer_now());
  max_in_flight_ = std::min(loop_->limits().max_stream_messages, method.max_in_flight());
  idle_since_ns_ = loop_->timer_now();
}

size_t GrpcCall::receive(const uint8_t* data, size_t size) {
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

// Reads until nothing is left, the call must wait or has ended, or the turn is over. True: the turn is over.
bool GrpcCall::read(const uint8_t*& data, size_t& size, SlabPool* slabs) {
  Method* method = head_.method();
  const bool streams = max_in_flight_ != 0;
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

bool GrpcCall::must_wait() const {
  return messages_in_flight_ >= max_in_flight_ || connection_->held_requests().must_hold();
}

// Waiting bytes are charged as they came, whatever messages they make. The peer's window bounds them.
void GrpcCall::keep_unread(const uint8_t* data, size_t size) {
  PeerAccount& account = accounts_->requests;
  if (!make_room(unread_, size, kMinUnreadBytes, SIZE_MAX, unread_charge_, account)) {
    return refuse_read(ReadError::no_memory_left);
  }
  unread_.append(data, size);
}

void GrpcCall::continue_reading() {
  if (max_in_flight_ == 0) return hand_over();
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
  if (reader_.unpacking()) connection_->held_requests().calls.add(*this);
  if (half_closed()) end_request();
}

void GrpcCall::after_reading() {
  HeldRequests& held = connection_->held_requests();
  if (has_unread()) {
    waiting_since_ns_ = 0;  // it waits for us
    // Otherwise message_done() or the connection continues.
    if (!unread_.empty() && messages_in_flight_ < max_in_flight_) held.calls.add(*this);
    return;
  }
  held.calls.remove(*this);
  if (!reader_.mid_message()) {
    waiting_since_ns_ = 0;
  } else if (waiting_since_ns_ == 0) {
    waiting_since_ns_ = loop_->timer_now();
  }
  open_window();
}

// A caller that streams faster than it is answered, or does not read its answers, runs out of window.
void GrpcCall::open_window() {
  if (withheld_bytes_ == 0 || finished_ || reading_ || has_unread()) return;
  if (messages_in_flight_ >= max_in_flight_) return;
  HeldRequests& held = connection_->held_requests();
  if (held.must_hold()) return void(held.windows_wait = true);
  connection_->session().consume_stream(stream_id_, withheld_bytes_);
  withheld_bytes_ = 0;
  connection_->mark_dirty();
}

void GrpcCall::message_done() {
  if (--messages_in_flight_ == 0) idle_since_ns_ = loop_->timer_now();
  if (connection_ == nullptr || reading_) return;
  if (unread_.empty()) return open_window();
  connection_->held_requests().calls.add(*this);
  connection_->mark_dirty();
}

void GrpcCall::end_request() {
  if (reader_.mid_message()) return refuse(kInvalidArgument, "the request ended inside a message");
  if (max_in_flight_ != 0) return head_.method()->on_half_close(*this);
  if (!has_message_) return refuse(kInvalidArgument, "expected one request message, got none");
  HeldRequests& held = connection_->held_requests();
  held.must_hold() ? held.calls.add(*this) : hand_over();
}

void GrpcCall::drop_request() {
  if (reading_) return;  // continue_reading does
  Call::drop_request();
  unread_.reset(0);
  unread_charge_.release();
}

// ---- The answer goes out ----

uint8_t* GrpcCall::add_message(size_t size) { return begin_message(out_, size); }

void GrpcCall::send() {
  if (finished_ && !unread_.empty()) drop_request();
  if (refused_ && !started_) out_.clear();
  if (!out_.empty()) stall_.start(loop_->timer_now());
  count_parked();
  if (started_) {
    connection_->session().resume(stream_id_);
  } else if (finished_ && out_.empty()) {
    send_status_only();
  } else {
    started_ = true;
    connection_->session().respond(*this, kResponseHead);
  }
  connection_->mark_dirty();
}

void GrpcCall::send_status_only() {
  started_ = true;
  const std::string http = std::to_string(http_status_ != 0 ? http_status_ : 200);
  StatusFields status(http, code_, text_, trailers_);
  connection_->session().respond_without_data(stream_id_, status.fields());
}

bool GrpcCall::send_trailers() {
  if (code_ == kOk && text_.empty() && !has_trailers_) {
    connection_->session().submit_trailers(stream_id_, kOkTrailers);
    return true;
  }
  StatusFields status(code_, text_, trailers_);
  connection_->session().submit_trailers(stream_id_, status.fields());
  return true;
}

void GrpcCall::recycle() { loop_->grpc_calls().give_back(this); }

void GrpcCall::reset() {
  Call::reset();
  own_head_.reset();
  messages_in_flight_ = max_in_flight_ = 0;
  withheld_bytes_ = 0;
  unread_.reset(0);
  unread_charge_.release();
}

}  // namespace fused_mlp::front
