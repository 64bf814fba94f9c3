// SPDX-License-Identifier: Apache-2.0
#include "front/methods/prediction.hpp"

#include <random>
#include <utility>

#include "engine/trace.hpp"
#include "front/grpc/framing.hpp"
#include "front/methods/predictor.hpp"

namespace fused_mlp::front {
namespace {

constexpr size_t kLongestModelTold = 128, kLongestPathTold = 256;
constexpr size_t kKeptAnswerBytes = 1u << 10;
constexpr const char* kOutOfMemory = "out of memory";  // short: storing it allocates nothing
constexpr size_t kAnswerFields = 96;                   // version, variant, timings, prefix
constexpr size_t kHeadFields = 64;                     // shape, dtype

// Sixteen hex digits, for a caller that sent no id of its own.
std::string random_id() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  constexpr char kHex[] = "0123456789abcdef";
  std::string id;
  for (uint64_t bits = random(), i = 0; i < 16; ++i, bits >>= 4) id.push_back(kHex[bits & 15]);
  return id;
}

}  // namespace

// ---- 1. On the loop: decode, route, check, submit. Each step that fails has answered the request. ----

void Prediction::start(Call& call, Message&& message, const Codec& codec) {
  const Nanos trace_begin_ns = tracing() ? owner_.engine().clock().now() : 0;
  started_ns_ = owner_.loop().now();
  message_ = std::move(message);
  codec_ = &codec;
  holders_.store(1, std::memory_order_relaxed);
  join(call);
  if (sampling()) [[unlikely]] {
    span_ = sample_request(call.head().trace(), call.head().method()->name(), started_ns_);
  }
  try {
    if (!codec_->framed() && !read_path()) return;
    if (const size_t bytes = codec_->decoding_bytes(message_.size(), input_); bytes != 0) {
      return decode_later(bytes);
    }
    if (!take_decoded(codec_->decode(message_.data(), message_.size(), input_))) return;
  } catch (const std::exception&) {
    return fail(Status::kernel_error, kOutOfMemory);
  }
  proceed(trace_begin_ns);
}

void Prediction::proceed(Nanos trace_begin_ns) {
  waiting_ = false;
  try {
    if (choose_lane()) submit(trace_begin_ns);
  } catch (const std::exception&) {  // the engine does not have it
    holders_.store(1, std::memory_order_relaxed);
    fail(Status::kernel_error, kOutOfMemory);
  }
}

void Prediction::join(Call& call) {
  call_ = &call;
  call.pin();
  next_ = first_of(call);
  if (next_ != nullptr) next_->previous_ = this;
  call.attachment = this;
}

// Its memory is charged before it exists, too.
void Prediction::decode_later(size_t bytes) {
  if (!decoding_memory_.resize(call_->accounts().requests, bytes)) {
    call_->report_shortage(Shortage::requests);
    return fail(Status::overloaded, "too many requests wait; retry later");
  }
  owner_.work_later(*call_, *this);
  decoding_ = true;
}

void Prediction::work_elsewhere() noexcept {
  results_.empty() ? decode_elsewhere() : encode_elsewhere();
  Loop& loop = owner_.loop();
  loop.post(this);  // it may be gone by the next line
  loop.flush();
}

void Prediction::decode_elsewhere() noexcept {
  try {
    error_ = codec_->decode(message_.data(), message_.size(), input_);
  } catch (const std::exception&) {
    status_ = Status::kernel_error;
  }
}

void Prediction::on_decoded() {
  decoding_ = false;
  decoding_memory_.release();
  if (status_ != Status::ok) return fail(status_, kOutOfMemory);
  if (!call_->open()) return fail(Status::cancelled, {});
  try {
    if (!take_decoded(std::exchange(error_, {}))) return;
  } catch (const std::exception&) {
    return fail(Status::kernel_error, kOutOfMemory);
  }
  proceed();
}

bool Prediction::take_decoded(std::string_view problem) {
  if (!problem.empty()) {
    input_.model = {};  // may be anything: it is counted under no model
    fail(Status::invalid_input, problem);
    return false;
  }
  if (!input_.scattered.empty() &&
      !scattered_.resize(call_->accounts().requests, input_.scattered.capacity())) {
    call_->report_shortage(Shortage::requests);
    fail(Status::overloaded, "too many requests wait; retry later");
    return false;
  }
  return true;
}

// REST: what the path and the headers say of the message.
bool Prediction::read_path() {
  const RestFields& rest = call_->head().rest();
  input_.model = rest.path.model;
  if (rest.json_bytes >= 0) input_.head_bytes = static_cast<size_t>(rest.json_bytes);
  if (rest.path.version.empty() || parse_version(rest.path.version, input_.arm.version)) return true;
  input_.model = {};
  fail(Status::invalid_input,
       "model_version: expected a whole number from 1 or nothing, got " + quote_name(rest.path.version));
  return false;
}

bool Prediction::choose_lane() {
  const RequestHead& head = call_->head();
  if (!head.arm().problem().empty()) {
    fail(Status::invalid_input, head.arm().problem());
    return false;
  }
  input_.arm.complete(head.arm().name());  // the message overrides the metadata
  LoopRoutes::Table& table = owner_.routes().current();
  const Route route = table.routes->resolve({input_.model, input_.arm.version, input_.arm.variant,
                                             head.ab_key(), input_.request_id, input_.arm.label});
  if (route.lane != nullptr) {
    lane_ = route.lane;
    table_ = &table;
    ++table_->users;
  }
  if (route.status == Status::not_loaded) {
    owner_.wait_for(*this, *route.entry);
    waiting_ = true;
    return false;
  }
  if (!route.ok()) {
    fail(route.status, route.error);
    return false;
  }
  entry_ = route.entry;
  variant_ = route.variant;
  return true;
}

void Prediction::submit(Nanos trace_begin_ns) {
  const TensorCheck check = input_.check(*entry_);
  if (!check.ok()) {
    lane_->metrics().refuse(Refusal::invalid_input);
    return fail(Status::invalid_input, check.error);
  }
  expect_answer(check.rows);
  ticket_.emplace(check.rows, &owner_.loop(), *this);
  ticket_->deadline_ns = call_->deadline_ns();
  ticket_->arrival_ns = started_ns_;
  ticket_->flow = call_->peer();
  if (trace_begin_ns != 0) [[unlikely]] {
    ticket_->trace_id = next_trace_id();
    record_span(TracePhase::decode, ticket_->trace_id, check.rows, trace_begin_ns,
                owner_.engine().clock().now(), lane_->options().name, trace());
  }
  owner_.add_to_round(*lane_, *ticket_);
  holders_.store(2, std::memory_order_relaxed);
}

Prediction& Prediction::of(Ticket& ticket) { return static_cast<EngineTicket&>(ticket).prediction(); }

void Prediction::on_refused(Status status) noexcept {
  holders_.store(1, std::memory_order_relaxed);
  try {
    fail(status, lane_->refusal_text(status));
  } catch (const std::exception&) {
    fail(status, kOutOfMemory);
  }
}

// Its bytes are charged before they exist: what the engine computes cannot be held back any more.
void Prediction::expect_answer(uint32_t rows) {
  size_t bytes = kAnswerFields + input_.model.size() + input_.request_id.size();
  for (size_t i = 0; i < input_.head_count; ++i) {
    const Head& head = entry_->heads[input_.heads[i]];
    const size_t numbers = size_t{rows} * head.width;
    bytes += kHeadFields + head.name.size() + numbers * codec_->most_bytes_of_number(input_.dtype);
  }
  expected_.resize_anyway(call_->accounts().answers, bytes);
  call_->expect_answer(bytes);
}

// ---- 2. On the thread that runs the batch: rows in, answer out, straight from the batch's output. That may
// be the loop: an answer that takes long to write is written elsewhere. ----

void Prediction::gather(float* dst) const noexcept {
  to_float32(input_.dtype, input_.data.data(), input_.data.size() / dtype_size(input_.dtype), dst);
}

void Prediction::complete(const Outcome& outcome) noexcept {
  status_ = outcome.status;
  queue_ns_ = outcome.queue_ns;
  compute_ns_ = outcome.compute_ns;
  if (outcome.status == Status::ok) {
    codec_->encodes_slowly(input_, *entry_, outcome.rows) ? keep_results(outcome) : encode(outcome);
  } else {
    set_error(outcome.detail);
  }
  if (span_ != nullptr) [[unlikely]] {
    try {
      span_->add(outcome, owner_.engine().clock().now());
    } catch (const std::exception&) {  // without the name of the strategy
    }
  }
  owner_.loop().post(this);
}

void Prediction::encode(const Outcome& outcome) noexcept {
  const uint64_t trace_id = ticket_->trace_id;
  const Nanos begin = trace_id == 0 ? 0 : owner_.engine().clock().now();
  const auto write = [&] {
    answer_head_ = codec_->encode(input_, *entry_, variant_, outcome, {outcome.y}, answer_);
  };
  try {
    codec_->framed() ? append_framed(answer_, write) : write();
  } catch (const std::exception&) {
    status_ = Status::kernel_error;
    error_ = kOutOfMemory;
  }
  if (begin != 0) {
    record_span(TracePhase::encode, trace_id, outcome.rows, begin, owner_.engine().clock().now(),
                lane_->options().name);
  }
}

void Prediction::keep_results(const Outcome& outcome) noexcept {
  try {
    results_.append(outcome.y, size_t{outcome.rows} * entry_->out_features * sizeof(float));
  } catch (const std::exception&) {
    status_ = Status::kernel_error;
    error_ = kOutOfMemory;
  }
}

// On the loop. False: there is nothing to encode any more.
bool Prediction::encode_later() noexcept {
  try {
    if (call_->open()) return owner_.work_later(*call_, *this), true;
  } catch (const std::exception&) {
    status_ = Status::kernel_error;
    error_ = kOutOfMemory;
  }
  results_.reset(0);
  return false;
}

void Prediction::encode_elsewhere() noexcept {
  Outcome outcome;
  outcome.rows = ticket_->rows();
  outcome.y = reinterpret_cast<const float*>(results_.data());
  encode(outcome);
  results_.reset(0);
}

// ---- 3. On the loop again: the answer goes to the call. ----

// It never reached the engine.
void Prediction::fail(Status status, std::string_view text) noexcept {
  status_ = status;
  set_error(text);
  deliver();
}

void Prediction::set_error(std::string_view text) noexcept {
  try {
    error_ = text;
  } catch (const std::exception&) {  // the status is told all the same
    error_ = kOutOfMemory;
  }
}

void Prediction::deliver() noexcept {
  if (decoding_) return on_decoded();
  if (!results_.empty() && encode_later()) return;
  if (answered_) return owner_.recycle(this);  // posted by release_from_engine
  answered_ = true;
  Call& call = *call_;
  leave();
  try {
    answer(call);
  } catch (const std::exception&) {  // for lack of memory; the answer may be half there
    call.abort();
  }
  finish(call);
  if (holders_.fetch_sub(1, std::memory_order_acq_rel) == 1) owner_.recycle(this);
}

void Prediction::answer(Call& call) {
  if (!call.open()) return;
  const bool streams = call.head().method()->client_streams();
  const int code = grpc_code(status_);
  if (code == kInternal) hide_internal_error();
  if (code != kOk && streams) {
    append_framed(answer_, [&] { codec_->encode_error(input_.request_id, code, error_, answer_); });
  }
  if (code == kOk || streams) call.add_framed(answer_);
  if (streams) {
    const bool last = call.half_closed() && first_of(call) == nullptr;
    last ? call.finish() : call.flush();
  } else if (status_ == Status::overloaded && lane_ != nullptr) {
    call.finish(code, error_, {{"retry-after-ms", std::to_string(lane_->retry_after_ms())}});
  } else if (answer_head_ != 0 && code == kOk) {
    call.finish(code, {}, {{"inference-header-content-length", std::to_string(answer_head_)}});
  } else {
    call.finish(code, error_);
  }
}

void Prediction::finish(Call& call) noexcept {
  const bool streams = call.head().method()->client_streams();
  if (!counted_) count(grpc_code(status_));
  if (span_ != nullptr) [[unlikely]]
    finish_span(counted_ ? abandoned_code_ : grpc_code(status_));
  if (table_ != nullptr) --table_->users;
  table_ = nullptr;
  if (expected_.bytes() != 0) {
    call.unexpect_answer(expected_.bytes());
    expected_.release();
  }
  message_.release();
  if (streams) call.message_done();  // allocates nothing of ours
  call_ = nullptr;
  call.unpin();
}

void Prediction::leave() {
  if (previous_ != nullptr) {
    previous_->next_ = next_;
  } else {
    call_->attachment = next_;
  }
  if (next_ != nullptr) next_->previous_ = previous_;
}

// The text goes to the log; the caller gets an id to find it by.
void Prediction::hide_internal_error() {
  const std::string id = input_.request_id.empty() ? random_id() : std::string(input_.short_id());
  owner_.failures().on_failure(id, trace().present() ? trace_hex(trace()) : std::string(), error_);
  error_ = "internal error; request id " + id;
}

void Prediction::count(int code) {
  const int64_t duration_ns = owner_.loop().now() - started_ns_;
  if (lane_ != nullptr) {
    lane_->record(code, duration_ns);
    const TraceContext& caller = call_->head().trace();
    if (span_ != nullptr || caller.sampled) [[unlikely]] {
      lane_->add_exemplars(span_ != nullptr ? span_->own() : caller, duration_ns,
                           code == kOk ? queue_ns_ : -1, compute_ns_);
    }
  } else {
    owner_.count_unserved(input_.model, code, duration_ns);
  }
}

void Prediction::finish_span(int code) noexcept {
  span_->end = owner_.engine().clock().now();
  span_->code = code;
  try {
    if (lane_ != nullptr) {
      span_->lane = lane_->options().name;
    } else {
      span_->model = cut_text(input_.model, kLongestModelTold);
    }
    if (!codec_->framed()) span_->path = cut_text(call_->head().path(), kLongestPathTold);
  } catch (const std::exception&) {  // without its model or path
  }
  finish_request(std::move(span_));
}

void Prediction::abandon(int code) {
  if (ticket_) ticket_->cancel();
  if (!counted_) count(code);
  counted_ = true;
  abandoned_code_ = code;
  if (!std::exchange(waiting_, false)) return;
  owner_.stop_waiting(*this);
  status_ = Status::cancelled;
  owner_.loop().post(this);  // not here: its call is in the middle of ending
}

// ---- 4. Recycling, on the loop, once it is answered and the engine has dropped the ticket. ----

// On any thread. The answer was delivered before if this is the last holder, so the list node is free again.
void Prediction::release_from_engine() noexcept {
  if (holders_.fetch_sub(1, std::memory_order_acq_rel) == 1) owner_.loop().post(this);
}

void Prediction::reset() {
  ticket_.reset();
  span_.reset();
  input_.reset();
  scattered_.release();
  results_.reset(0);
  answer_.reset(kKeptAnswerBytes);
  answer_head_ = 0;
  error_.clear();
  previous_ = next_ = nullptr;
  entry_ = nullptr;
  lane_ = nullptr;
  status_ = Status::ok;
  counted_ = false;
  answered_ = false;
}

}  // namespace fused_mlp::front
