#include "front/methods/predictor.hpp"

#include "front/methods/prediction.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {
namespace {

constexpr size_t kKeptPredictions = 1024;  // some 3 KiB each

}  // namespace

Predictor::Predictor(Loop& loop, Engine& engine, const Router& router, FailureLog& failures)
    : loop_(loop), engine_(engine), failures_(failures), runner_(engine), routes_(router) {
  free_.reserve(kKeptPredictions);
}

Predictor::~Predictor() {
  for (Prediction* prediction : free_) delete prediction;
}

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

void Predictor::recycle(Prediction* prediction) noexcept {
  --in_use_;
  if (free_.size() >= kKeptPredictions) {
    delete prediction;
    return;
  }
  prediction->reset();
  free_.push_back(prediction);
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
  }
  submitting_.clear();
  submitted_ = true;
}

bool Predictor::run_ready() {
  submit_round();
  if (!submitted_) return false;
  submitted_ = runner_.run_ready();
  return submitted_;
}

void Predictor::wait_for(Prediction& prediction, const RouteEntry& entry) {
  if (waiting_.empty()) {
    waiting_generation_ = routes_.current().generation;
    wanted_.clear();
  }
  // Python knows of it once the routes say that it is loading.
  if (!entry.loading && wanted_.emplace(entry.model, entry.version).second) {
    failures_.on_wanted(entry.model, entry.version);
  }
  waiting_.push_back(&prediction);  // last: if anything throws, it does not wait
}

void Predictor::stop_waiting(const Prediction& prediction) noexcept { std::erase(waiting_, &prediction); }

void Predictor::tick() {
  routes_.refresh();
  if (waiting_.empty() || routes_.current().generation == waiting_generation_) return;
  // Those whose model is still not loaded wait again.
  const std::vector<Prediction*> waited = std::exchange(waiting_, {});
  wanted_.clear();
  waiting_generation_ = routes_.current().generation;
  for (Prediction* prediction : waited) {
    if (prediction->waits()) prediction->proceed();  // not if the end of another took its call along
  }
}

void Predictor::abandon(Call& call, int code) {
  for (Prediction* p = Prediction::first_of(call); p != nullptr; p = p->next_of_call()) p->abandon(code);
}

double PredictionMethod::idle_timeout_s(bool first) const {
  return first ? predictor_.loop().limits().first_message_timeout_s : 0;
}

void PredictionMethod::on_half_close(Call& call) {
  if (Prediction::first_of(call) == nullptr) call.finish();
}

void PredictionMethod::on_cancel(Call& call) { predictor_.abandon(call, kCancelled); }

void PredictionMethod::on_refuse(Call& call, int code) {
  // The messages of a stream are counted one by one; without any there is nothing to count.
  if (Prediction::first_of(call) == nullptr && !streams_) {
    predictor_.count_unrouted(code, call.loop().now() - call.arrival_ns());
  }
  predictor_.abandon(call, code);
}

}  // namespace fused_mlp::front
