// The half of Connection that deals with its calls: gRPC on top of HTTP/2.
#include <algorithm>

#include "front/connection.hpp"
#include "front/loop.hpp"
#include "front/metadata.hpp"
#include "front/session.hpp"

namespace fused_mlp::front {
namespace {

nghttp2_nv field(std::string_view name, std::string_view value, uint8_t flags = NGHTTP2_NV_FLAG_NONE) {
  return {reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
          reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(), flags};
}

// Literals need no copy inside nghttp2.
constexpr uint8_t kLiteral = NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE;

// The fields that end a call. Keeps the encoded values alive until nghttp2 has copied them.
class StatusFields {
 public:
  StatusFields(int code, std::string_view text, const Metadata& trailers) : number_(std::to_string(code)) {
    fields_.push_back(field("grpc-status", number_));
    if (!text.empty()) {
      text_ = percent_encode(text);
      fields_.push_back(field("grpc-message", text_));
    }
    encoded_.reserve(trailers.size());
    for (const auto& [name, value] : trailers) {
      encoded_.push_back(is_binary_name(name) ? base64_encode(value) : value);
      fields_.push_back(field(name, encoded_.back()));
    }
  }
  std::vector<nghttp2_nv>& fields() { return fields_; }

 private:
  std::string number_, text_;
  std::vector<std::string> encoded_;
  std::vector<nghttp2_nv> fields_;
};

}  // namespace

Call* Connection::find(int32_t stream_id) {
  if (current_ == nullptr || current_->stream_id_ != stream_id) {
    current_ = static_cast<Call*>(nghttp2_session_get_stream_user_data(session_, stream_id));
  }
  return current_;
}

void Connection::begin_call(Call& call) {
  const int64_t now_ns = loop_.now();
  call.arrival_ns_ = now_ns;
  call.rejection_ = call.head_.check(loop_.limits());
  if (!call.rejection_ && loop_.draining()) {
    call.rejection_ = Rejection{200, kUnavailable, "the server is shutting down"};
  }
  if (call.rejection_) return;  // told when the request has ended, or in the next sweep
  if (call.head_.timeout_ns() >= 0) call.deadline_ns_ = now_ns + call.head_.timeout_ns();
  Method& method = *call.head_.method();
  const size_t most = std::min(loop_.limits().max_message_bytes, method.max_message_bytes());
  call.reader_.start(most, &loop_.assembly(), call.head_.encoding());
  if (!method.client_streams()) call.waiting_since_ns_ = now_ns;
  method.on_start(call);
}

// Not at once: callers that are about to send a small request (curl) do not expect its answer before they
// have.
void Connection::reject(Call& call) {
  const Rejection rejection = *std::move(call.rejection_);
  call.rejection_.reset();
  if (call.head_.encoding() == Encoding::unknown) {
    call.trailers_ = {{"grpc-accept-encoding", "identity,gzip"}};
    call.has_trailers_ = true;
  }
  refuse(call, rejection.http_status, rejection.code, rejection.text);
}

void Connection::take_data(Call& call, const uint8_t* data, size_t size) {
  nghttp2_session_consume_connection(session_, size);
  const size_t total = size;
  Method* method = call.head_.method();
  while (size != 0 && !call.finished_ && !call.rejection_) {
    Message message;
    ReadError error = ReadError::none;
    if (!call.reader_.feed(data, size, loop_.slabs(), message, error)) {
      if (error != ReadError::none) refuse_read(call, error);
    } else if (method->client_streams()) {
      ++call.messages_in_flight_;
      hand_over(call, std::move(message));
    } else if (call.has_message_) {
      refuse(call, 200, kInvalidArgument, "expected one request message, got more");
    } else {
      call.message_ = std::move(message);
      call.has_message_ = true;
    }
  }
  if (method == nullptr || call.finished_ || call.rejection_ || !method->client_streams()) {
    nghttp2_session_consume_stream(session_, call.stream_id_, total);
    return;
  }
  if (!call.reader_.mid_message()) {
    call.waiting_since_ns_ = 0;
  } else if (call.waiting_since_ns_ == 0) {
    call.waiting_since_ns_ = loop_.now();
  }
  call.withheld_bytes_ += total;
  let_in(call);
}

// A caller that streams faster than it is answered, or that does not read, runs out of window.
void Connection::let_in(Call& call) {
  const Limits& limits = loop_.limits();
  if (call.messages_in_flight_ >= limits.max_stream_messages) return;
  if (parked_full()) {
    holds_back_ = true;
    return;
  }
  nghttp2_session_consume_stream(session_, call.stream_id_, call.withheld_bytes_);
  call.withheld_bytes_ = 0;
  mark_dirty();
}

void Connection::take_half_close(Call& call) {
  call.half_closed_ = true;
  call.waiting_since_ns_ = 0;
  if (call.finished_) return;
  if (call.rejection_) return reject(call);
  if (call.reader_.mid_message()) {
    return refuse(call, 200, kInvalidArgument, "the request ended inside a message");
  }
  Method& method = *call.head_.method();
  if (method.client_streams()) {
    if (call.held_messages_ == 0) method.on_half_close(call);
    return;
  }
  if (!call.has_message_)
    return refuse(call, 200, kInvalidArgument, "expected one request message, got none");
  hand_over(call, std::move(call.message_));
}

// A peer that keeps its windows shut has its requests wait here, where they are accounted for, and not become
// answers that are not.
void Connection::hand_over(Call& call, Message&& message) {
  if (call.held_messages_ == 0 && !parked_full()) {
    return call.head_.method()->on_message(call, std::move(message));
  }
  ++call.held_messages_;
  held_.push_back({call.stream_id_, std::move(message)});
  holds_back_ = true;
}

// Its windows have opened, or its calls have ended.
void Connection::hand_over_held() {
  while (!held_.empty() && !parked_full()) {
    Held held = std::move(held_.front());
    held_.pop_front();
    Call* call = find(held.stream_id);
    if (call == nullptr || call->finished_) continue;
    --call->held_messages_;
    Method& method = *call->head_.method();
    method.on_message(*call, std::move(held.message));
    if (method.client_streams() && call->half_closed() && !call->finished_) method.on_half_close(*call);
  }
  current_ = nullptr;
  if (!held_.empty()) return;
  holds_back_ = false;
  for (Call* call = calls_; call != nullptr; call = call->next_) {
    if (call->withheld_bytes_ != 0 && !call->finished_) let_in(*call);
  }
}

// It has let an answer wait too long. Those that would come after it are not computed.
void Connection::refuse_held() {
  for (const Held& held : std::exchange(held_, {})) {
    Call* call = find(held.stream_id);
    if (call == nullptr || call->finished_) continue;
    refuse(*call, 200, kResourceExhausted, "earlier answers on this connection were not read in time");
  }
  current_ = nullptr;
}

void Connection::count_parked(Call& call) {
  parked_bytes_ += call.out_.size() - call.parked_bytes_;
  call.parked_bytes_ = call.out_.size();
}

void Connection::refuse_read(Call& call, ReadError error) {
  const size_t most_bytes =
      std::min(loop_.limits().max_message_bytes, call.head_.method()->max_message_bytes());
  const std::string most = std::to_string(most_bytes) + " bytes";
  switch (error) {
    case ReadError::too_large:
      return refuse(call, 200, kResourceExhausted, "message: expected at most " + most);
    case ReadError::no_memory_left:
      return refuse(call, 200, kResourceExhausted, "too many unfinished messages; retry later");
    case ReadError::not_compressed:
      return refuse(call, 200, kInternal,
                    "message is marked compressed, but grpc-encoding names no compression");
    case ReadError::bad_gzip:
      return refuse(call, 200, kInvalidArgument, "message: expected gzip data");
    case ReadError::bad_prefix:
      return refuse(call, 200, kInvalidArgument, "message prefix: expected compressed-flag 0 or 1");
    case ReadError::none:
      return;
  }
}

// The front ends the call by itself.
void Connection::refuse(Call& call, int http_status, int code, std::string_view text) {
  Method* method = call.head_.method();
  call.finished_ = true;
  call.code_ = code;
  call.text_ = text;
  if (call.started_) {
    answer(call);
  } else {
    call.out_.clear();
    count_parked(call);
    call.started_ = true;
    submit_head_only(call, http_status);
    mark_dirty();
  }
  if (method != nullptr) method->on_refuse(call, code);
}

void Connection::answer(Call& call) {
  if (!call.out_.empty()) call.unsent_.wait(loop_.now());
  count_parked(call);
  if (call.started_) {
    nghttp2_session_resume_data(session_, call.stream_id_);
  } else if (call.finished_ && call.out_.empty()) {
    call.started_ = true;
    submit_head_only(call, 200);
  } else {
    call.started_ = true;
    const nghttp2_nv head[] = {field(":status", "200", kLiteral),
                               field("content-type", "application/grpc", kLiteral)};
    nghttp2_data_provider provider{{.ptr = &call}, read_answer};
    nghttp2_submit_response(session_, call.stream_id_, head, std::size(head), &provider);
  }
  mark_dirty();
}

void Connection::submit_head_only(Call& call, int http_status) {
  StatusFields status(call.code_, call.text_, call.trailers_);
  const std::string http = std::to_string(http_status);
  const nghttp2_nv head[] = {field(":status", http), field("content-type", "application/grpc", kLiteral)};
  status.fields().insert(status.fields().begin(), std::begin(head), std::end(head));
  nghttp2_submit_response(session_, call.stream_id_, status.fields().data(), status.fields().size(), nullptr);
}

void Connection::submit_trailers(Call& call) {
  if (call.code_ == kOk && call.text_.empty() && !call.has_trailers_) {
    const nghttp2_nv ok = field("grpc-status", "0", kLiteral);
    nghttp2_submit_trailer(session_, call.stream_id_, &ok, 1);
    return;
  }
  StatusFields status(call.code_, call.text_, call.trailers_);
  nghttp2_submit_trailer(session_, call.stream_id_, status.fields().data(), status.fields().size());
}

// The answer is complete and the caller still sends: the rest is not wanted (RFC 9113, 8.1). Not done at
// once, because most callers are about to end by themselves, and some (curl) take the reset for an error.
void Connection::stop_request(Call& call) {
  nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, call.stream_id_, NGHTTP2_NO_ERROR);
  mark_dirty();
}

void Connection::end_call(Call& call) {
  if (current_ == &call) current_ = nullptr;
  (call.previous_ != nullptr ? call.previous_->next_ : calls_) = call.next_;
  if (call.next_ != nullptr) call.next_->previous_ = call.previous_;
  parked_bytes_ -= call.parked_bytes_;
  call.parked_bytes_ = 0;
  if (call.held_messages_ != 0) {
    std::erase_if(held_, [&call](const Held& held) { return held.stream_id == call.stream_id_; });
  }
  call.connection_ = nullptr;
  if (--open_calls_ == 0) idle_since_ns_ = loop_.now();
  bump(loop_.stats().open_calls, static_cast<uint64_t>(-1));
  Method* method = call.head_.method();
  call.pin();  // on_cancel may drop the last pin
  if (!call.finished_ && method != nullptr && call.arrival_ns_ != 0) method->on_cancel(call);
  call.unpin();
}

}  // namespace fused_mlp::front
