#include "front/call.hpp"

#include <algorithm>

#include "front/connection.hpp"
#include "front/framing.hpp"
#include "front/loop.hpp"
#include "front/response_fields.hpp"

namespace fused_mlp::front {
namespace {

constexpr size_t kKeptBytes = 16u << 10;  // of a recycled call's output buffer

}  // namespace

void Call::attach(Connection& connection, int32_t stream_id) {
  connection_ = &connection;
  stream_id_ = stream_id;
}

// ---- The request comes in ----

void Call::begin() {
  arrival_ns_ = loop_->now();
  rejection_ = head_.check(loop_->limits());
  if (!rejection_ && loop_->draining()) {
    rejection_ = Rejection{200, kUnavailable, "the server is shutting down"};
  }
  if (rejection_) return;  // sent when the request has ended, or by the next sweep
  if (head_.timeout_ns() >= 0) deadline_ns_ = arrival_ns_ + head_.timeout_ns();
  reader_.start(max_message_bytes(), &loop_->assembly(), head_.encoding());
  Method& method = *head_.method();
  if (!method.client_streams()) waiting_since_ns_ = arrival_ns_;
  method.on_start(*this);
}

size_t Call::max_message_bytes() const {
  return std::min(loop_->limits().max_message_bytes, head_.method()->max_message_bytes());
}

void Call::receive(const uint8_t* data, size_t size) {
  connection_->session().consume_connection(size);
  const size_t total = size;
  Method* method = head_.method();
  while (size != 0 && !finished_ && !rejection_) {
    Message message;
    ReadError error = ReadError::none;
    if (!reader_.feed(data, size, loop_->slabs(), message, error)) {
      if (error != ReadError::none) refuse_read(error);
    } else if (method->client_streams()) {
      ++messages_in_flight_;
      hand_over(std::move(message));
    } else if (has_message_) {
      refuse(kInvalidArgument, "expected one request message, got more");
    } else {
      message_ = std::move(message);
      has_message_ = true;
    }
  }
  if (method == nullptr || finished_ || rejection_ || !method->client_streams()) {
    connection_->session().consume_stream(stream_id_, total);
    return;
  }
  if (!reader_.mid_message()) {
    waiting_since_ns_ = 0;
  } else if (waiting_since_ns_ == 0) {
    waiting_since_ns_ = loop_->now();
  }
  withheld_bytes_ += total;
  open_window();
}

// A caller that streams faster than it is answered, or that does not read its answers, runs out of window.
void Call::open_window() {
  if (messages_in_flight_ >= loop_->limits().max_stream_messages) return;
  HeldRequests& held = connection_->held_requests();
  if (held.must_hold()) return held.hold_window();
  connection_->session().consume_stream(stream_id_, withheld_bytes_);
  withheld_bytes_ = 0;
  connection_->mark_dirty();
}

void Call::message_done() {
  --messages_in_flight_;
  if (withheld_bytes_ != 0 && connection_ != nullptr) open_window();
}

void Call::half_close() {
  half_closed_ = true;
  waiting_since_ns_ = 0;
  if (finished_) return;
  if (rejection_) return reject();
  if (reader_.mid_message()) return refuse(kInvalidArgument, "the request ended inside a message");
  Method& method = *head_.method();
  if (method.client_streams()) {
    if (held_messages_ == 0) method.on_half_close(*this);
    return;
  }
  if (!has_message_) return refuse(kInvalidArgument, "expected one request message, got none");
  hand_over(std::move(message_));
}

void Call::hand_over(Message&& message) {
  HeldRequests& held = connection_->held_requests();
  if (held_messages_ == 0 && !held.must_hold()) return head_.method()->on_message(*this, std::move(message));
  ++held_messages_;
  held.hold(stream_id_, std::move(message));
}

void Call::hand_over_held(Message message) {
  --held_messages_;
  Method& method = *head_.method();
  method.on_message(*this, std::move(message));
  if (method.client_streams() && half_closed() && !finished_) method.on_half_close(*this);
}

// ---- The front ends it ----

// Not sent at once: callers that are about to send a small request (curl) do not expect its answer before
// they have.
void Call::reject() {
  const Rejection rejection = *std::move(rejection_);
  rejection_.reset();
  if (head_.encoding() == Encoding::unknown) {
    trailers_ = {{"grpc-accept-encoding", "identity,gzip"}};
    has_trailers_ = true;
  }
  refuse(rejection.http_status, rejection.code, rejection.text);
}

void Call::refuse_read(ReadError error) {
  switch (error) {
    case ReadError::too_large:
      return refuse(kResourceExhausted,
                    "message: expected at most " + std::to_string(max_message_bytes()) + " bytes");
    case ReadError::no_memory_left:
      return refuse(kResourceExhausted, "too many unfinished messages; retry later");
    case ReadError::not_compressed:
      return refuse(kInternal, "message is marked compressed, but grpc-encoding names no compression");
    case ReadError::bad_gzip:
      return refuse(kInvalidArgument, "message: expected gzip data");
    case ReadError::bad_prefix:
      return refuse(kInvalidArgument, "message prefix: expected compressed-flag 0 or 1");
    case ReadError::none:
      return;
  }
}

void Call::refuse(int http_status, int code, std::string_view text) {
  bump(loop_->stats().refused[static_cast<size_t>(code)]);
  finished_ = true;
  code_ = code;
  text_ = text;
  if (started_) {
    send();
  } else {
    out_.clear();
    count_parked();
    send_status_only(http_status);
    connection_->mark_dirty();
  }
  if (Method* method = head_.method()) method->on_refuse(*this, code);
}

void Call::sweep(int64_t now_ns) {
  const Limits& limits = loop_->limits();
  if (elapsed(stall_.since_ns(), limits.send_timeout_s, now_ns)) {
    connection_->reset_stalled_stream(stream_id_);
  } else if (finished_) {
    if (answered_early_ && elapsed(waiting_since_ns_, limits.receive_timeout_s, now_ns)) stop_request();
  } else if (rejection_) {
    reject();
  } else if (deadline_ns_ != 0 && now_ns > deadline_ns_) {
    refuse(kDeadlineExceeded, "the deadline passed before the answer was ready");
  } else if (elapsed(waiting_since_ns_, limits.receive_timeout_s, now_ns)) {
    refuse(kDeadlineExceeded, "the rest of the message did not come in time");
  }
}

// ---- The answer goes out ----

uint8_t* Call::add_message(size_t size) { return begin_message(out_, size); }

void Call::add_framed(ByteBuffer& framed) {
  if (out_.empty()) {
    out_.swap(framed);
  } else {
    out_.append(framed.data(), framed.size());
  }
}

void Call::flush() {
  if (open()) send();
}

void Call::finish(int code, std::string_view text, const Metadata& trailers) {
  if (!open()) return;
  finished_ = true;
  code_ = code;
  if (!text.empty()) text_ = text;
  if (!trailers.empty()) {
    trailers_ = trailers;
    has_trailers_ = true;
  }
  send();
}

void Call::send() {
  if (!out_.empty()) stall_.start(loop_->now());
  count_parked();
  if (started_) {
    connection_->session().resume(stream_id_);
  } else if (finished_ && out_.empty()) {
    send_status_only(200);
  } else {
    started_ = true;
    connection_->session().respond(*this, kResponseHead);
  }
  connection_->mark_dirty();
}

void Call::send_status_only(int http_status) {
  started_ = true;
  const std::string http = std::to_string(http_status);
  StatusFields status(http, code_, text_, trailers_);
  connection_->session().respond_without_data(stream_id_, status.fields());
}

void Call::send_trailers() {
  if (code_ == kOk && text_.empty() && !has_trailers_) {
    return connection_->session().submit_trailers(stream_id_, kOkTrailers);
  }
  StatusFields status(code_, text_, trailers_);
  connection_->session().submit_trailers(stream_id_, status.fields());
}

void Call::take_answer(uint8_t* place, size_t size) {
  std::copy_n(out_.data(), size, place);
  out_.consume(size);
  stall_.on_taken(size, out_.empty(), loop_->now());
  count_parked();
  if (finished_) return;
  if (withheld_bytes_ != 0) open_window();
  head_.method()->on_sent(*this);
}

void Call::count_parked() {
  connection_->held_requests().change_parked(parked_bytes_, out_.size());
  parked_bytes_ = out_.size();
}

void Call::on_answer_ended() {
  if (half_closed_) return;
  answered_early_ = true;
  waiting_since_ns_ = loop_->now();
}

void Call::on_more_data() {
  if (answered_early_) stop_request();
}

// The answer is complete and the caller still sends: the rest is not wanted (RFC 9113, 8.1). Not done at
// once, because most callers are about to end by themselves, and some (curl) take the reset for an error.
void Call::stop_request() { connection_->reset_stream(stream_id_, NGHTTP2_NO_ERROR); }

// ---- The stream is closed ----

void Call::detach() {
  connection_->held_requests().change_parked(parked_bytes_, 0);
  parked_bytes_ = 0;
  connection_ = nullptr;
  Method* method = head_.method();
  pin();  // on_cancel may drop the last pin
  if (!finished_ && method != nullptr && arrival_ns_ != 0) method->on_cancel(*this);
  unpin();
}

void Call::unpin() {
  if (--pins_ == 0 && connection_ == nullptr) loop_->calls().give_back(this);
}

void Call::reset() {
  previous_ = next_ = nullptr;
  messages_in_flight_ = held_messages_ = 0;
  half_closed_ = started_ = finished_ = has_message_ = answered_early_ = false;
  arrival_ns_ = deadline_ns_ = waiting_since_ns_ = 0;
  stall_ = {};
  withheld_bytes_ = parked_bytes_ = 0;
  head_.reset();
  rejection_.reset();
  reader_.reset();
  message_.release();
  out_.reset(kKeptBytes);
  code_ = kOk;
  text_.clear();
  if (has_trailers_) trailers_.clear();
  has_trailers_ = false;
  attachment = nullptr;
  number = 0;
}

}  // namespace fused_mlp::front
