// SPDX-License-Identifier: Apache-2.0
#include "front/methods/predictor.hpp"

#include <utility>

#include "front/methods/prediction.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {
namespace {

constexpr size_t kKeptPredictions = 1024;  // some 3 KiB each
// A version that requests still wait for is asked for again after this long.
constexpr int64_t kWantAgain = 1'000'000'000;

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

void Predictor::work_later(const Call& call, Prediction& prediction) {
  elsewhere_.push(reinterpret_cast<uintptr_t>(call.accounts().ledger.get()), call.peer(), prediction);
}

void Predictor::count_unserved(std::string_view model, int code, int64_t duration_ns) {
  RequestMetrics* const counts = routes_.current().routes->unserved(model);
  (counts != nullptr ? *counts : engine_.unrouted()).record(code, duration_ns);
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
  Wait& wait = waiting_[{entry.model, entry.version}];
  if (wait.wanted_ns == 0) want(entry, wait);
  wait.predictions.push_back(&prediction);  // last: if anything throws, it does not wait
}

void Predictor::want(const RouteEntry& entry, Wait& wait) {
  wait.wanted_ns = loop_.now();
  // Python knows of it once the routes say that it is loading.
  if (!entry.loading) failures_.on_wanted(entry.model, entry.version);
}

void Predictor::stop_waiting(const Prediction& prediction) noexcept {
  for (auto& [key, wait] : waiting_) {
    if (std::erase(wait.predictions, &prediction) != 0) return;
  }
}

void Predictor::tick() {
  routes_.refresh();
  if (!waiting_.empty()) resume_waiting();
}

// One look per version, however many wait for it; the others stay where they are.
void Predictor::resume_waiting() {
  // Asked once: another time might replace, and free, what this one gave.
  const LoopRoutes::Table& current = routes_.current();
  const std::shared_ptr<const RouteTable> table = current.routes;
  const uint64_t generation = current.generation;
  const bool changed = std::exchange(waiting_generation_, generation) != generation;
  const int64_t now = loop_.now();
  std::vector<Prediction*> resumed;
  for (auto each = waiting_.begin(); each != waiting_.end();) {
    auto& [key, wait] = *each;
    if (!changed && !wait.predictions.empty() && now - wait.wanted_ns < kWantAgain) {
      ++each;
      continue;
    }
    const RouteEntry* const entry = table->unloaded(key.first, key.second);
    if (entry != nullptr && !wait.predictions.empty()) {
      // It may have been loaded and unloaded again while this loop was busy.
      if (now - wait.wanted_ns >= kWantAgain) want(*entry, wait);
      ++each;
      continue;
    }
    resumed.insert(resumed.end(), wait.predictions.begin(), wait.predictions.end());
    each = waiting_.erase(each);
  }
  for (Prediction* prediction : resumed) {
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
