// SPDX-License-Identifier: Apache-2.0
#include "front/call/call.hpp"

#include <algorithm>
#include <exception>

#include "front/access/loop_callers.hpp"
#include "front/http2/connection.hpp"
#include "front/rest/rest_head.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {
namespace {

constexpr size_t kKeptBytes = 1u << 10;  // of a recycled call's output buffer
constexpr int64_t kYoung = 1'000'000'000;
constexpr int64_t kMinDeadlineTolerance = 2'000'000;
constexpr int64_t kRejectAfter = 50'000'000;  // for a request that does not end; see reject

}  // namespace

bool Call::attach(Connection& connection, int32_t stream_id) {
  accounts_ = &connection.accounts();
  if (!memory_.resize(accounts_->calls, kBytes)) return false;
  connection_ = &connection;
  peer_ = reinterpret_cast<uintptr_t>(&connection);
  flow_ = connection.flow();
  stream_id_ = stream_id;
  return true;
}

std::vector<std::string> Call::certificate_names() const {
  return connection_ == nullptr ? std::vector<std::string>() : connection_->certificate_names();
}

uint64_t Call::address() const { return reinterpret_cast<uintptr_t>(accounts_->ledger.get()); }

std::string Call::peer_address() const { return connection_ == nullptr ? "" : peer_name(connection_->fd()); }

// ---- The request comes in ----

void Call::begin() {
  arrival_ns_ = loop_->now();
  rejection_ = head_.check(loop_->limits());
  if (!rejection_ && !memory_.resize(accounts_->calls, kBytes + head_.memory_bytes())) {
    report_shortage(Shortage::calls);
    rejection_ = Rejection{200, kResourceExhausted, "too many open calls; retry later"};
  }
  const RestFields* const rest = head_.rest();
  if (rest != nullptr && !rejection_ && rest->content_length > static_cast<int64_t>(max_message_bytes())) {
    rejection_ = Rejection{413, kResourceExhausted, too_large_text()};
  }
  if (!rejection_ && head_.method()->needs_caller()) {
    if (LoopCallers* const callers = loop_->application().callers()) rejection_ = callers->identify(*this);
  }
  if (rejection_) return;  // sent when the request has ended, or by a later sweep
  if (head_.timeout_ns() >= 0) {
    deadline_ns_ = arrival_ns_ - loop_->rested_ns() + head_.timeout_ns();
    sent_after_ns_ = connection_->send_time().known_ns();
  }
  reader_.start(max_message_bytes(), &loop_->assembly(), &accounts_->requests, head_.encoding(),
                &loop_->turn());
  Method& method = *head_.method();
  start_reading(method);
  method.on_start(*this);
}

size_t Call::max_message_bytes() const {
  return std::min(loop_->max_message_bytes(), head_.method()->max_message_bytes());
}

void Call::half_close() {
  half_closed_ = true;
  waiting_since_ns_ = 0;
  if (finished_) return;
  if (rejection_) return reject();
  if (half_closed()) end_request();
}

void Call::drop_request() {
  connection_->held_requests().calls.remove(*this);
  reader_.reset();
  message_.release();
}

// ---- Accounting ----

void Call::expect_answer(size_t bytes) {
  expected_bytes_ += bytes;
  connection_->held_requests().expected_bytes += bytes;
}

void Call::unexpect_answer(size_t bytes) {
  expected_bytes_ -= bytes;
  if (connection_ != nullptr) connection_->held_requests().expected_bytes -= bytes;
}

void Call::on_metadata_taken() { memory_.resize(accounts_->calls, kBytes); }

void Call::report_shortage(Shortage account) {
  if (connection_ != nullptr) loop_->on_shortage(account, connection_->fd());
}

bool Call::begin_control(size_t bytes, size_t max_bytes) {
  ControlCalls& control = connection_->control_calls;
  if (control.count >= loop_->limits().max_control_calls || control.bytes + bytes > max_bytes) return false;
  ++control.count;
  control.bytes += bytes;
  control_bytes_ = bytes;
  return true;
}

// ---- The front ends it ----

// A rejection waits for the end of the request: callers that are about to send a small body (curl) do not
// expect its answer before that.
void Call::reject() {
  const Rejection rejection = *std::move(rejection_);
  rejection_.reset();
  if (rejection.code == kOk) {  // a CORS preflight
    http_status_ = rejection.http_status;
    return finish();
  }
  if (head_.encoding() == Encoding::unknown) {
    trailers_ = head_.accepted_encodings();
    has_trailers_ = true;
  }
  if (rejection.retry_after_ms != 0) {
    trailers_ = {{"retry-after-ms", std::to_string(rejection.retry_after_ms)}};
    has_trailers_ = true;
  }
  refuse(rejection.http_status, rejection.code, rejection.text);
}

std::string Call::too_large_text() const {
  return "message: expected at most " + std::to_string(max_message_bytes()) + " bytes";
}

void Call::refuse_read(ReadError error) {
  switch (error) {
    case ReadError::too_large:
      return refuse(http_status(413), kResourceExhausted, too_large_text());
    case ReadError::no_memory_left:
      report_shortage(Shortage::requests);
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
  finished_ = refused_ = true;
  code_ = code;
  text_ = text;
  drop_request();
  if (http_status != 200) http_status_ = http_status;
  send();
  if (Method* method = head_.method()) method->on_refuse(*this, code);
}

void Call::sweep() {
  const Limits& limits = loop_->limits();
  const int64_t now_ns = loop_->timer_now();
  if (elapsed(stall_.since_ns(), limits.send_timeout_s, now_ns)) {
    connection_->reset_stalled_stream(stream_id_);
  } else if (finished_) {
    if (answered_early_ && elapsed(waiting_since_ns_, limits.receive_timeout_s, now_ns)) stop_request();
  } else if (rejection_) {
    if (loop_->now() - arrival_ns_ >= kRejectAfter) reject();
  } else if (deadline_ns_ != 0 && loop_->now() > deadline_ns_) {
    refuse(kDeadlineExceeded, "the deadline passed before the answer was ready");
  } else if (elapsed(waiting_since_ns_, limits.receive_timeout_s, now_ns)) {
    refuse(http_status(408), kDeadlineExceeded, "the rest of the message did not come in time");
  } else if (idle_since_ns_ != 0 &&
             elapsed(idle_since_ns_, head_.method()->idle_timeout_s(!has_message_), now_ns)) {
    refuse(kDeadlineExceeded, "no request came on this stream for too long");
  }
}

// ---- The answer goes out ----

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

void Call::abort() noexcept {
  if (connection_ == nullptr) return;
  finished_ = aborted_ = true;
  bump(loop_->stats().failures);
  connection_->reset_stream(stream_id_,
                            NGHTTP2_INTERNAL_ERROR);  // allocates nothing of ours: see Loop::adopt
}

void Call::take_answer(uint8_t* place, size_t size) {
  std::copy_n(out_.data(), size, place);
  out_.consume(size);
  stall_.on_taken(size, out_.empty(), loop_->timer_now());
  count_parked();
  if (finished_) return;
  open_window();
  head_.method()->on_sent(*this);
}

void Call::count_parked() {
  const size_t before = parked_.bytes();
  const size_t now = out_.empty() ? 0 : out_.capacity();
  if (now == before) return;
  parked_.resize_anyway(accounts_->answers, now);
  connection_->held_requests().parked_bytes += now - before;
}

void Call::on_answer_ended() {
  if (half_closed_) return;
  answered_early_ = true;
  waiting_since_ns_ = loop_->timer_now();
}

void Call::on_more_data() {
  if (answered_early_) stop_request();
}

// The answer is complete and the caller still sends: the rest is not wanted (RFC 9113, 8.1). The reset is
// delayed, because most callers are about to end by themselves, and some (curl) report the reset as an error.
void Call::stop_request() { connection_->reset_stream(stream_id_, NGHTTP2_NO_ERROR); }

// ---- The stream is closed ----

bool Call::premature(int64_t now_ns) const {
  if (arrival_ns_ != 0 && now_ns - arrival_ns_ >= kYoung) return false;
  return !started_ || (refused_ && !answered_early_);
}

// Half of its timeout: clients round it up.
bool Call::may_have_expired(int64_t now_ns) const {
  return sent_after_ns_ == 0 || now_ns - sent_after_ns_ >= head_.timeout_ns() / 2;
}

// Our deadline is later than the caller's: clients round their timeout up, and our timer starts when the
// request is read.
bool Call::reset_at_deadline() const {
  if (deadline_ns_ == 0) return false;
  const int64_t tolerance_ns = std::max(head_.timeout_ns() / 10, kMinDeadlineTolerance);
  return loop_->read_clock() >= deadline_ns_ - tolerance_ns;
}

void Call::detach() {
  drop_request();
  connection_->held_requests().parked_bytes -= parked_.bytes();
  connection_->held_requests().expected_bytes -= expected_bytes_;
  parked_.release();
  if (control_bytes_ != 0) connection_->control_calls.remove(control_bytes_);
  control_bytes_ = 0;
  connection_ = nullptr;
  Method* method = head_.method();
  pin();  // on_cancel may drop the last pin
  try {
    if ((!finished_ || aborted_) && method != nullptr && arrival_ns_ != 0) method->on_cancel(*this);
  } catch (const std::exception&) {
    unpin();
    throw;
  }
  unpin();
}

void Call::unpin() {
  if (--pins_ == 0 && connection_ == nullptr) recycle();
}

void Call::reset() {
  half_closed_ = started_ = finished_ = has_message_ = refused_ = answered_early_ = aborted_ = false;
  arrival_ns_ = deadline_ns_ = sent_after_ns_ = waiting_since_ns_ = idle_since_ns_ = 0;
  stall_ = {};
  http_status_ = 0;
  rejection_.reset();
  reader_.reset();
  message_.release();
  out_.reset(kKeptBytes);
  memory_.release();
  code_ = kOk;
  text_.clear();
  if (has_trailers_) trailers_.clear();
  has_trailers_ = false;
  identified = {};
  attachment = nullptr;
  number = 0;
}

}  // namespace fused_mlp::front
