// SPDX-License-Identifier: Apache-2.0
#include "front/methods/prediction.hpp"

#include <random>
#include <utility>

#include "engine/telemetry/trace.hpp"
#include "front/access/loop_callers.hpp"
#include "front/grpc/framing.hpp"
#include "front/methods/bridge.hpp"
#include "front/rest/rest_head.hpp"

namespace fused_mlp::front {
namespace {

constexpr size_t kMaxSpanModelBytes = 128, kMaxSpanPathBytes = 256;
constexpr size_t kKeptAnswerBytes = 1u << 10;
constexpr size_t kAnswerFields = 96;           // version, variant, timings, prefix
constexpr size_t kHeadFields = 64;             // shape, dtype
constexpr size_t kQuickPackBytes = 64u << 10;  // of a message and its records: some 50 us
constexpr size_t kKeptPredictions = 1024;      // some 3 KiB each

// Sixteen hex digits, for a caller that sent no id of its own.
std::string random_id() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  constexpr char kHex[] = "0123456789abcdef";
  std::string id;
  for (uint64_t bits = random(), i = 0; i < 16; ++i, bits >>= 4) id.push_back(kHex[bits & 15]);
  return id;
}

void abandon_all(Call& call, int code) {
  for (Prediction* p = Prediction::first_of(call); p != nullptr; p = p->next_of_call()) p->abandon(code);
}

}  // namespace

// ---- 1. On the loop: a message takes a prediction from the pool. ----

void Predictor::predict(Call& call, Message&& message, const Codec& codec) {
  Prediction* prediction;
  if (free_.empty()) {
    prediction = new Prediction(*this);
  } else {
    prediction = free_.back();
    free_.pop_back();
  }
  ++in_use_;
  prediction->start(call, std::move(message), codec);
}

// ---- 2. Decode, route, check, submit. Each step that fails has answered the request. ----

void Prediction::start(Call& call, Message&& message, const Codec& codec) {
  const Nanos trace_begin_ns = tracing() ? owner_.engine.clock().now() : 0;
  started_ns_ = owner_.loop.now();
  message_ = std::move(message);
  codec_ = &codec;
  holders_.store(1, std::memory_order_relaxed);
  join(call);
  if (sampling()) [[unlikely]] {
    span_ = sample_request(call.head().trace(), call.head().method()->name(), started_ns_, call.address());
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
    if (check_caller() && choose_lane()) submit(trace_begin_ns);
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

bool Prediction::take_decoded(std::string_view problem) {
  if (!problem.empty()) {
    input_.model = {};  // may be anything: it is counted under no model
    fail(Status::invalid_input, problem);
    return false;
  }
  const size_t bytes = input_.own_bytes();
  if (bytes != 0 && !own_bytes_.resize(call_->accounts().requests, bytes)) {
    refuse_for_memory();
    return false;
  }
  return true;
}

// REST: the path and the headers name the model, the version and the size of the JSON.
bool Prediction::read_path() {
  const RestFields& rest = *call_->head().rest();
  input_.model = rest.path.model;
  if (rest.json_bytes >= 0) input_.head_bytes = static_cast<size_t>(rest.json_bytes);
  if (rest.path.version.empty() || parse_version(rest.path.version, input_.arm.version)) return true;
  input_.model = {};
  fail(Status::invalid_input,
       "model_version: expected a whole number from 1 or nothing, got " + quote_name(rest.path.version));
  return false;
}

// Before the model is looked up: the answer must not tell whether a model of that name exists. The caller of
// a stream is identified again when the rules have changed.
bool Prediction::check_caller() {
  LoopCallers* const callers = owner_.loop.application().callers();
  if (callers == nullptr) return true;
  if (const std::optional<Rejection> rejection = callers->identify(*call_)) {
    retry_after_ms_ = rejection->retry_after_ms;
    const Status status = rejection->code == kResourceExhausted  ? Status::overloaded
                          : rejection->code == kPermissionDenied ? Status::not_allowed
                                                                 : Status::unauthenticated;
    fail(status, rejection->text);
    return false;
  }
  const Caller* const caller = call_->caller();
  if (caller == nullptr || caller->allows(Action::predict, input_.model)) return true;
  caller->count_denied();
  fail(Status::not_allowed, "this caller may not call model " + quote_name(input_.model));
  return false;
}

// A refusal for a quota is not counted on the lane.
bool Prediction::take_quota(uint32_t rows) {
  const Caller* const caller = call_->caller();
  if (caller == nullptr) return true;
  const Caller::Admission admission = caller->admit(rows, owner_.loop.now());
  if (admission.refused_by == Quota::none) {
    if (caller->must_release()) in_flight_of_ = call_->identified.caller;
    return true;
  }
  lane_ = nullptr;
  retry_after_ms_ = admission.retry_after_ms;
  fail(Status::overloaded, admission.text(*caller));
  return false;
}

bool Prediction::choose_lane() {
  const RequestHead& head = call_->head();
  if (!head.arm().problem().empty()) {
    fail(Status::invalid_input, head.arm().problem());
    return false;
  }
  input_.arm.complete(head.arm().name());  // the message overrides the metadata
  LoopRoutes::Table& table = owner_.routes.current();
  const Route route = table.routes->resolve({input_.model, input_.arm.version, input_.arm.variant,
                                             head.ab_key(), input_.request_id, input_.arm.label});
  if (route.lane != nullptr) {
    lane_ = route.lane;
    table_ = &table;
    ++table_->users;
  }
  if (route.status == Status::not_loaded) {
    owner_.loads.add(*this, *route.entry);
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
    lane_->metrics->refuse(Refusal::invalid_input);
    return fail(Status::invalid_input, check.error);
  }
  if (!take_quota(check.rows)) return;
  entry_->layout == nullptr ? queue(check.rows, trace_begin_ns) : pack_records(check.rows, trace_begin_ns);
}

// Charges the memory of the records before it exists: rows with few ids take little of a message.
void Prediction::pack_records(uint32_t rows, Nanos trace_begin_ns) {
  const size_t bytes = input_.record_bytes(*entry_, rows);
  if (!own_bytes_.resize(call_->accounts().requests, input_.own_bytes() + bytes)) {
    return refuse_for_memory();
  }
  rows_ = rows;
  if (message_.size() + bytes > kQuickPackBytes) return work_later(Elsewhere::pack);
  error_ = input_.pack(*entry_, rows);
  on_packed(trace_begin_ns);
}

void Prediction::on_packed(Nanos trace_begin_ns) {
  elsewhere_ = Elsewhere::no;
  if (status_ != Status::ok) return fail(status_, kOutOfMemory);
  if (!call_->open()) return fail(Status::cancelled, {});
  if (!error_.empty()) {
    lane_->metrics->refuse(Refusal::invalid_input);
    return fail(Status::invalid_input, std::exchange(error_, {}));
  }
  try {
    queue(rows_, trace_begin_ns);
  } catch (const std::exception&) {  // the engine does not have it
    fail(Status::kernel_error, kOutOfMemory);
  }
}

void Prediction::queue(uint32_t rows, Nanos trace_begin_ns) {
  expect_answer(rows);
  ticket_.emplace(rows, &owner_.loop, *this);
  ticket_->deadline_ns = call_->deadline_ns();
  ticket_->arrival_ns = started_ns_;
  ticket_->flow = call_->flow();
  if (const Caller* const caller = call_->caller()) {
    ticket_->flow = caller->flow();
    ticket_->weight = caller->rules().weight;
  }
  if (trace_begin_ns != 0) [[unlikely]] {
    ticket_->trace_id = next_trace_id();
    record_span(TracePhase::decode, ticket_->trace_id, rows, trace_begin_ns, owner_.engine.clock().now(),
                lane_->options.name, trace());
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

// Charges the answer before it exists: an answer that the engine computes cannot be held back.
void Prediction::expect_answer(uint32_t rows) {
  size_t bytes = kAnswerFields + input_.model.size() + input_.request_id.size();
  for (size_t i = 0; i < input_.head_count; ++i) {
    const Head& head = entry_->heads[input_.heads[i]];
    const size_t numbers = input_.most_rows(*entry_, rows) * input_.most_columns(head);
    // Positions and ids, of up to 20 digits.
    if (input_.ranking.wanted()) bytes += 2 * numbers * (codec_->framed() ? 10 : 21);
    bytes += kHeadFields + head.name.size() + numbers * codec_->max_bytes_of_number(input_.dtype);
  }
  expected_.resize_anyway(call_->accounts().answers, bytes);
  call_->expect_answer(bytes);
}

// All that arrived in this round, then a batch of it on this thread.
bool Predictor::run_ready() {
  submit_round();
  if (!submitted_) return false;
  submitted_ = runner_.run_ready();
  return submitted_;
}

void Predictor::submit_round() {
  if (round_.empty()) return;
  submitting_.swap(round_);  // an answer may let its caller's next request in
  runner_.submit(submitting_);
  for (Submission& each : submitting_) {
    if (each.status == Status::ok) continue;
    Prediction& refused = Prediction::of(*each.ticket);
    static_cast<void>(each.ticket.leak());  // the engine never had it
    refused.on_refused(each.status);
    loop.on_refusal();
  }
  submitting_.clear();
  submitted_ = true;
}

// ---- 3. On the thread that runs the batch: rows in, answer out, straight from the batch's output. That may
// be the loop: an answer that takes long to write is written elsewhere. ----

void Prediction::gather(float* dst) const noexcept { input_.gather(ticket_->rows(), dst); }

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
      span_->add(outcome, owner_.engine.clock().now());
    } catch (const std::exception&) {  // without the name of the strategy
    }
  }
  owner_.loop.post(this);
}

void Prediction::encode(const Outcome& outcome) noexcept {
  const uint64_t trace_id = ticket_->trace_id;
  const Nanos begin = trace_id == 0 ? 0 : owner_.engine.clock().now();
  const auto write = [&] {
    answer_head_ = codec_->encode(input_, *entry_, variant_, outcome, {outcome.y}, answer_);
  };
  try {
    codec_->framed() ? append_framed(answer_, write) : write();
  } catch (const std::exception&) {
    run_out_of_memory();
  }
  if (begin != 0) {
    record_span(TracePhase::encode, trace_id, outcome.rows, begin, owner_.engine.clock().now(),
                lane_->options.name);
  }
}

// ---- 4. On the loop again: the answer goes to the call. ----

void Prediction::run_out_of_memory() noexcept {
  status_ = Status::kernel_error;
  error_ = kOutOfMemory;
}

void Prediction::refuse_for_memory() {
  call_->report_shortage(Shortage::requests);
  fail(Status::overloaded, "too many requests wait; retry later");
}

// Ends a request that never reached the engine.
void Prediction::fail(Status status, std::string_view text) noexcept {
  status_ = status;
  set_error(text);
  deliver();
}

void Prediction::set_error(std::string_view text) noexcept {
  try {
    error_ = text;
  } catch (const std::exception&) {  // the status is still sent
    error_ = kOutOfMemory;
  }
}

void Prediction::deliver() noexcept {
  if (elsewhere_ == Elsewhere::decode) return on_decoded();
  if (elsewhere_ == Elsewhere::pack) return on_packed();
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
  } else if ((status_ == Status::overloaded || status_ == Status::deadline_too_near) &&
             (lane_ != nullptr || retry_after_ms_ != 0)) {
    const uint32_t retry_after_ms = retry_after_ms_ != 0 ? retry_after_ms_ : lane_->retry_after_ms();
    call.finish(code, error_, {{"retry-after-ms", std::to_string(retry_after_ms)}});
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
  if (in_flight_of_ != nullptr) std::exchange(in_flight_of_, nullptr)->release();
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
  owner_.bridge.on_failure(id, trace().present() ? trace_hex(trace()) : std::string(), error_);
  error_ = "internal error; request id " + id;
}

void Prediction::count(int code) {
  const int64_t duration_ns = owner_.loop.now() - started_ns_;
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
  span_->end = owner_.engine.clock().now();
  span_->code = code;
  try {
    if (lane_ != nullptr) {
      span_->lane = lane_->options.name;
    } else {
      span_->model = cut_text(input_.model, kMaxSpanModelBytes);
    }
    if (!codec_->framed()) span_->path = cut_text(call_->head().path(), kMaxSpanPathBytes);
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
  owner_.loads.remove(*this);
  status_ = Status::cancelled;
  owner_.loop.post(this);  // not here: its call is in the middle of ending
}

// ---- 5. Recycling, on the loop, once it is answered and the engine has dropped the ticket. ----

// On any thread. The answer was delivered before if this is the last holder, so the list node is free again.
void Prediction::release_from_engine() noexcept {
  if (holders_.fetch_sub(1, std::memory_order_acq_rel) == 1) owner_.loop.post(this);
}

void Prediction::reset() {
  ticket_.reset();
  span_.reset();
  input_.reset();
  decoding_memory_.release();  // still held if the codec thread could not be started
  own_bytes_.release();
  results_.reset(0);
  answer_.reset(kKeptAnswerBytes);
  answer_head_ = 0;
  error_.clear();
  previous_ = next_ = nullptr;
  entry_ = nullptr;
  lane_ = nullptr;
  status_ = Status::ok;
  retry_after_ms_ = 0;
  counted_ = false;
  answered_ = false;
}

void Predictor::recycle(Prediction* prediction) noexcept {
  --in_use_;
  if (free_.size() >= kKeptPredictions) {
    delete prediction;
    return;
  }
  prediction->reset();
  free_.push_back(prediction);
}

// ---- What predictions share, and their RPCs ----

Predictor::Predictor(Loop& loop, Engine& engine, const Router& router, Bridge& bridge)
    : loop(loop),
      engine(engine),
      bridge(bridge),
      routes(router),
      loads(loop, routes, bridge),
      runner_(engine) {
  free_.reserve(kKeptPredictions);
}

Predictor::~Predictor() {
  for (Prediction* prediction : free_) delete prediction;
}

void Predictor::tick() {
  routes.refresh();
  loads.resume();
}

void Predictor::count_unserved(std::string_view model, int code, int64_t duration_ns) {
  RequestMetrics* const counts = routes.current().routes->unserved(model);
  (counts != nullptr ? *counts : engine.unrouted()).record(code, duration_ns);
}

double PredictionMethod::idle_timeout_s(bool first) const {
  return first ? predictor_.loop.limits().first_message_timeout_s : 0;
}

void PredictionMethod::on_half_close(Call& call) {
  if (Prediction::first_of(call) == nullptr) call.finish();
}

void PredictionMethod::on_cancel(Call& call) {
  abandon_all(call, call.reset_at_deadline() ? kDeadlineExceeded : kCancelled);
}

void PredictionMethod::on_refuse(Call& call, int code) {
  // The messages of a stream are counted one by one; without any there is nothing to count.
  if (Prediction::first_of(call) == nullptr && !streams_) {
    predictor_.engine.unrouted().record(code, call.loop().now() - call.arrival_ns());
  }
  abandon_all(call, code);
}

}  // namespace fused_mlp::front
