// SPDX-License-Identifier: Apache-2.0
// What the predictions of one loop share: engine, routes, the pool they are recycled in; and the RPCs that
// start them. Loop thread only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codec/codec.hpp"
#include "engine/engine.hpp"
#include "front/grpc/method.hpp"
#include "front/methods/codec_thread.hpp"
#include "front/methods/failure_log.hpp"
#include "front/methods/loop_routes.hpp"

namespace fused_mlp::front {

class Loop;
class Prediction;

class Predictor {
 public:
  Predictor(Loop& loop, Engine& engine, const Router& router, FailureLog& failures);
  ~Predictor();
  Predictor(const Predictor&) = delete;
  Predictor& operator=(const Predictor&) = delete;

  // For the application:
  void predict(Call& call, Message&& message, const Codec& codec);
  // The call ended early; `code` is what its unfinished requests are counted under.
  void abandon(Call& call, int code);
  void count_unrouted(int code, int64_t duration_ns) { engine_.unrouted().record(code, duration_ns); }
  // Of a request that reached no lane: under its model, if that is served.
  void count_unserved(std::string_view model, int code, int64_t duration_ns);
  bool run_ready();  // submits the round, then runs a batch on this thread; true: call again
  void tick();
  bool idle() const { return in_use_ == 0; }

  // For its predictions:
  Loop& loop() { return loop_; }
  Engine& engine() { return engine_; }
  LoopRoutes& routes() { return routes_; }
  FailureLog& failures() { return failures_; }
  // Submitted with all others that have arrived, under one lock.
  void add_to_round(Lane& lane, Ticket& ticket) {
    round_.push_back({&lane, {}});  // may throw: then the ticket stays its owner's
    round_.back().ticket = Ref<Ticket>::adopt(&ticket);
  }
  // Until its version, which is loaded on demand, is loaded or cannot be.
  void wait_for(Prediction& prediction, const RouteEntry& entry);
  void stop_waiting(const Prediction& prediction) noexcept;
  void recycle(Prediction* prediction) noexcept;
  // Prediction::work_elsewhere on another thread.
  void work_later(const Call& call, Prediction& prediction);

 private:
  // Those that wait for one version, oldest first.
  struct Wait {
    std::vector<Prediction*> predictions;
    int64_t wanted_ns = 0;  // when Python was told
  };

  void submit_round();
  void resume_waiting();
  void want(const RouteEntry& entry, Wait& wait);

  Loop& loop_;
  Engine& engine_;
  FailureLog& failures_;
  InlineRunner runner_;
  LoopRoutes routes_;
  std::vector<Prediction*> free_;
  std::map<std::pair<std::string, int64_t>, Wait> waiting_;
  uint64_t waiting_generation_ = 0;  // of the routes when they were last looked at
  size_t in_use_ = 0;
  std::vector<Submission> round_, submitting_;
  bool submitted_ = false;
  CodecThread elsewhere_;
};

// Predict and ModelInfer, one request per call or a stream of them.
class PredictionMethod final : public Method {
 public:
  // `name`: a literal.
  PredictionMethod(Predictor& predictor, const Codec& codec, bool streams, std::string_view name)
      : predictor_(predictor), codec_(codec), streams_(streams), name_(name) {}
  bool client_streams() const override { return streams_; }
  std::string_view name() const override { return name_; }
  double idle_timeout_s(bool first) const override;
  void on_message(Call& call, Message&& message) override {
    predictor_.predict(call, std::move(message), codec_);
  }
  void on_half_close(Call& call) override;
  void on_cancel(Call& call) override;
  void on_refuse(Call& call, int code) override;

 private:
  Predictor& predictor_;
  const Codec& codec_;
  const bool streams_;
  const std::string_view name_;
};

}  // namespace fused_mlp::front
