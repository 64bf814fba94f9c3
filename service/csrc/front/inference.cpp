#include "front/inference.hpp"

#include <random>

#include "engine/trace.hpp"

namespace fused_mlp::front {
namespace {

constexpr size_t kKeptPredictions = 4096;
constexpr size_t kKeptAnswerBytes = 16u << 10;

// Sixteen hex digits, for a caller who sent no id of its own.
std::string random_id() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  constexpr char kHex[] = "0123456789abcdef";
  std::string id;
  for (uint64_t bits = random(), i = 0; i < 16; ++i, bits >>= 4) id.push_back(kHex[bits & 15]);
  return id;
}

// A caller's own id, cut to a length that is safe to send back and to log, and never inside a character.
std::string_view shorten(std::string_view id) {
  constexpr size_t kMost = 80;
  if (id.size() <= kMost) return id;
  size_t end = kMost;
  while (end > 0 && (static_cast<uint8_t>(id[end]) & 0xc0) == 0x80) --end;
  return id.substr(0, end);
}

}  // namespace

void EngineTicket::gather(float* dst) noexcept {
  const Prediction& p = prediction_;
  to_float32(p.ask_.dtype, p.ask_.data.data(), p.ask_.data.size() / dtype_size(p.ask_.dtype), dst);
}

// On whatever thread ran the batch: the answer is encoded there, straight from the batch's output.
void EngineTicket::complete(const Outcome& outcome) noexcept {
  Prediction& p = prediction_;
  p.status_ = outcome.status;
  if (outcome.status == Status::ok) {
    const Nanos begin = trace_id == 0 ? 0 : p.owner_.engine_.clock().now();
    p.codec_->encode(p.ask_, *p.entry_, p.variant_, outcome, p.answer_);
    if (begin != 0) {
      record_span(TracePhase::encode, trace_id, rows(), begin, p.owner_.engine_.clock().now(),
                  p.lane_->options().name);
    }
  } else {
    p.detail_ = outcome.detail;
  }
  p.owner_.loop_.post(&p);
}

void EngineTicket::dispose() noexcept { prediction_.part_done(); }

void Prediction::part_done() noexcept {
  if (parts_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    // Recycling is the loop's business. It was delivered before, so the link is free to be used again.
    owner_.loop_.post(this);
  }
}

void Prediction::deliver() noexcept {
  if (delivered_) {
    owner_.recycle(this);
    return;
  }
  delivered_ = true;
  owner_.answer(*this);
  if (parts_.fetch_sub(1, std::memory_order_acq_rel) == 1) owner_.recycle(this);
}

Inference::Inference(Loop& loop, Engine& engine, const Router& router, FailureLog& failures)
    : loop_(loop),
      engine_(engine),
      router_(router),
      failures_(failures),
      runner_(engine),
      table_(std::make_unique<HeldTable>()) {
  look_for_new_table();
}

Inference::~Inference() {
  for (Prediction* prediction : free_) delete prediction;
}

// Old tables (and with them lanes and kernels) go when the last prediction that points into them has gone.
void Inference::look_for_new_table() {
  const uint64_t generation = router_.generation();
  if (table_->generation != generation) {
    auto fresh = std::make_unique<HeldTable>();
    fresh->table = router_.table();
    fresh->generation = generation;
    std::swap(table_, fresh);
    if (fresh->users != 0) old_tables_.push_back(std::move(fresh));
  }
  if (!old_tables_.empty()) std::erase_if(old_tables_, [](const auto& held) { return held->users == 0; });
}

Prediction* Inference::take(Call& call, Message&& message, const Codec& codec) {
  Prediction* p;
  if (free_.empty()) {
    p = new Prediction(*this);
  } else {
    p = free_.back();
    free_.pop_back();
  }
  ++out_;
  p->call_ = &call;
  p->codec_ = &codec;
  p->message_ = std::move(message);
  p->started_ns_ = loop_.now();
  call.pin();
  p->next_ = static_cast<Prediction*>(call.attachment);
  if (p->next_ != nullptr) p->next_->previous_ = p;
  call.attachment = p;
  return p;
}

void Inference::recycle(Prediction* p) {
  --out_;
  if (free_.size() >= kKeptPredictions) {
    delete p;
    return;
  }
  p->ticket_.reset();
  p->ask_.reset();
  p->answer_.reset(kKeptAnswerBytes);
  p->detail_.clear();
  p->previous_ = p->next_ = nullptr;
  p->entry_ = nullptr;
  p->lane_ = nullptr;
  p->status_ = Status::ok;
  p->counted_ = false;
  p->delivered_ = false;
  free_.push_back(p);
}

void Inference::submit(Call& call, Message&& message, const Codec& codec) {
  if (router_.generation() != table_->generation) look_for_new_table();
  const Nanos begin = tracing() ? engine_.clock().now() : 0;
  Prediction& p = *take(call, std::move(message), codec);
  p.parts_.store(1, std::memory_order_relaxed);
  const std::string problem = codec.decode(p.message_.data(), p.message_.size(), p.ask_);
  if (!problem.empty()) return fail(p, Status::invalid_input, problem);
  const RequestHead& head = call.head();
  if (!head.unknown_variant().empty()) {
    return fail(p, Status::invalid_input,
                "x-fused-mlp-variant: expected fused or unfused, got " + head.unknown_variant());
  }
  // What the message says is nearer to the caller than what its metadata says.
  const Variant wish = p.ask_.variant != Variant::unspecified ? p.ask_.variant : head.variant();
  const Route route =
      table_->table->resolve({p.ask_.model, p.ask_.version, wish, head.ab_key(), p.ask_.request_id});
  if (!route.ok()) return fail(p, route.status, route.error);
  p.entry_ = route.entry;
  p.lane_ = route.lane;
  p.variant_ = route.variant;
  p.table_ = table_.get();
  ++p.table_->users;
  const TensorCheck check = p.ask_.check(*route.entry);
  if (!check.ok()) {
    p.lane_->metrics().refuse(Refusal::invalid_input);
    return fail(p, Status::invalid_input, check.error);
  }
  p.ticket_.emplace(check.rows, &loop_, p);
  p.ticket_->deadline_ns = call.deadline_ns();
  p.ticket_->arrival_ns = p.started_ns_;
  if (begin != 0) [[unlikely]] {
    p.ticket_->trace_id = next_trace_id();
    record_span(TracePhase::decode, p.ticket_->trace_id, check.rows, begin, engine_.clock().now(),
                p.lane_->options().name);
  }
  p.parts_.store(2, std::memory_order_relaxed);
  auto ticket = Ref<Ticket>::adopt(&*p.ticket_);
  const Status status = engine_.submit(*p.lane_, std::move(ticket), Wake::caller);
  if (status == Status::ok) {
    submitted_ = true;
  } else {
    static_cast<void>(ticket.leak());  // refused: the engine never had it
    p.parts_.store(1, std::memory_order_relaxed);
    fail(p, status, p.lane_->refusal_text(status));
  }
}

bool Inference::run_ready() {
  if (!submitted_) return false;
  submitted_ = runner_.run_ready();
  return submitted_;
}

// A prediction that never reached the engine, or came back without a result.
void Inference::fail(Prediction& p, Status status, std::string_view text) {
  p.status_ = status;
  p.detail_ = text;
  p.deliver();
}

void Inference::leave_call(Prediction& p) {
  if (p.previous_ != nullptr) {
    p.previous_->next_ = p.next_;
  } else {
    p.call_->attachment = p.next_;
  }
  if (p.next_ != nullptr) p.next_->previous_ = p.previous_;
}

void Inference::answer(Prediction& p) {
  Call& call = *p.call_;
  leave_call(p);
  const bool streams = call.head().method()->client_streams();
  const int code = grpc_code(p.status_);
  if (call.open()) {
    if (code == kInternal) {
      const std::string id =
          p.ask_.request_id.empty() ? random_id() : std::string(shorten(p.ask_.request_id));
      failures_.on_failure(id, p.detail_);
      p.detail_ = "internal error; request id " + id;
    }
    if (code != kOk && streams) p.codec_->encode_error(p.ask_.request_id, code, p.detail_, p.answer_);
    if (code == kOk || streams) call.add_framed(p.answer_);
    if (streams) {
      const bool last = call.half_closed() && call.attachment == nullptr;
      last ? call.finish() : call.flush();
    } else if (p.status_ == Status::overloaded) {
      call.finish(code, p.detail_, {{"retry-after-ms", std::to_string(p.lane_->retry_after_ms())}});
    } else {
      call.finish(code, p.detail_);
    }
  }
  if (!p.counted_) count(p, code);
  if (p.table_ != nullptr) --p.table_->users;
  p.table_ = nullptr;
  p.message_.release();
  if (streams) call.message_done();
  p.call_ = nullptr;
  call.unpin();
}

void Inference::count(Prediction& p, int code) {
  const int64_t duration_ns = loop_.now() - p.started_ns_;
  if (p.lane_ != nullptr) {
    p.lane_->record(code, duration_ns);
  } else {
    count_unrouted(code, duration_ns);
  }
}

void Inference::abandon(Call& call, int code) {
  for (auto* p = static_cast<Prediction*>(call.attachment); p != nullptr; p = p->next_) {
    if (p->ticket_) p->ticket_->cancel();
    if (!p->counted_) count(*p, code);
    p->counted_ = true;
  }
}

void PredictionMethod::on_refuse(Call& call, int code) {
  // The messages of a stream are counted one by one; without any there is nothing to count.
  if (call.attachment == nullptr && !streams_) {
    inference_.count_unrouted(code, call.loop().now() - call.arrival_ns());
  }
  inference_.abandon(call, code);
}

}  // namespace fused_mlp::front
