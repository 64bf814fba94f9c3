// SPDX-License-Identifier: Apache-2.0
// The prediction RPCs. A Prediction is one request, from its message to its answer; prediction.cpp follows
// the order of events. A Predictor is what the predictions of one loop share. Everything runs on the loop's
// thread, except the overrides of EngineTicket (the thread that runs the batch) and work_elsewhere (the
// CodecThread).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codec/codec.hpp"
#include "engine/engine.hpp"
#include "engine/route/router.hpp"
#include "engine/telemetry/request_spans.hpp"
#include "front/call/call.hpp"
#include "front/methods/codec_thread.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {

class Bridge;
class Prediction;

inline constexpr const char* kOutOfMemory = "out of memory";  // short: storing it allocates nothing

// A loop's view of the route table: one atomic load per request, no reference counts shared between threads.
class LoopRoutes {
 public:
  // A table, and how many requests still point into it.
  struct Table {
    std::shared_ptr<const RouteTable> routes;
    uint64_t generation = 0;
    uint32_t users = 0;
  };

  explicit LoopRoutes(const Router& router) : router_(router) {
    current_->generation = router.generation();  // first: a table that is newer is seen again
    current_->routes = router.table();
  }

  Table& current() noexcept {
    if (router_.generation() != current_->generation) refresh();
    return *current_;
  }
  // Also called now and then by an idle loop: an old table, with its lanes and kernels, is freed when its
  // last user has gone.
  void refresh() noexcept {
    if (current_->generation != router_.generation()) {
      try {
        replace();
      } catch (const std::bad_alloc&) {  // the present one serves on, until the next look
      }
    }
    if (!old_.empty()) std::erase_if(old_, [](const auto& table) { return table->users == 0; });
  }

 private:
  void replace() {
    auto fresh = std::make_unique<Table>();
    old_.reserve(old_.size() + 1);  // first: a table with users must not be lost
    fresh->generation = router_.generation();
    fresh->routes = router_.table();
    std::swap(current_, fresh);
    if (fresh->users != 0) old_.push_back(std::move(fresh));
  }

  const Router& router_;
  std::unique_ptr<Table> current_ = std::make_unique<Table>();
  std::vector<std::unique_ptr<Table>> old_;
};

// Predictions whose version is loaded on demand wait here until it is loaded or cannot be.
class LoadQueue {
 public:
  LoadQueue(Loop& loop, LoopRoutes& routes, Bridge& bridge) : loop_(loop), routes_(routes), bridge_(bridge) {}
  void add(Prediction& prediction, const RouteEntry& entry);
  void remove(const Prediction& prediction) noexcept;
  void resume();  // those whose version has changed

 private:
  // Predictions that wait for one version, oldest first.
  struct Wait {
    std::vector<Prediction*> predictions;
    int64_t asked_ns = 0;  // when Python was asked
  };
  void ask(const RouteEntry& entry, Wait& wait);

  Loop& loop_;
  LoopRoutes& routes_;
  Bridge& bridge_;
  std::map<std::pair<std::string, int64_t>, Wait> waits_;
  uint64_t generation_ = 0;  // of the routes at the last resume
};

class Predictor {
 public:
  Predictor(Loop& loop, Engine& engine, const Router& router, Bridge& bridge);
  ~Predictor();
  Predictor(const Predictor&) = delete;
  Predictor& operator=(const Predictor&) = delete;

  void predict(Call& call, Message&& message, const Codec& codec);
  bool run_ready();  // submits the round, then runs a batch on this thread; true: call again
  void tick();
  bool idle() const { return in_use_ == 0; }

  // For its predictions:
  // Submitted with all others that have arrived, under one lock.
  void add_to_round(Lane& lane, Ticket& ticket) {
    round_.push_back({&lane, {}});  // may throw: then the ticket stays its owner's
    round_.back().ticket = Ref<Ticket>::adopt(&ticket);
  }
  // Counts a request that reached no lane under its model, if that is served.
  void count_unserved(std::string_view model, int code, int64_t duration_ns);
  void recycle(Prediction* prediction) noexcept;

  Loop& loop;
  Engine& engine;
  Bridge& bridge;
  LoopRoutes routes;
  LoadQueue loads;
  CodecThread codec_thread;

 private:
  void submit_round();

  InlineRunner runner_;
  std::vector<Prediction*> free_;
  size_t in_use_ = 0;
  std::vector<Submission> round_, submitting_;
  bool submitted_ = false;
};

class Prediction final : public Delivery {
 public:
  explicit Prediction(Predictor& owner) : owner_(owner) {}

  void start(Call& call, Message&& message, const Codec& codec);
  bool waits() const { return waiting_; }  // for its model to be loaded
  void work_elsewhere() noexcept;          // on a CodecThread: decodes the message, or encodes the answer
  // Chooses a lane and submits; called again after the model was loaded.
  void proceed(Nanos trace_begin_ns = 0);
  void deliver() noexcept override;
  // Its call ended early. The engine's answer, if one still comes, is dropped.
  void abandon(int code);
  void reset();  // for the next request
  // The engine did not take it.
  void on_refused(Status status) noexcept;
  static Prediction& of(Ticket& ticket);  // a ticket of add_to_round

  // The unfinished requests of a call.
  static Prediction* first_of(const Call& call) { return static_cast<Prediction*>(call.attachment); }
  Prediction* next_of_call() const { return next_; }

 private:
  // The engine's view of a prediction, and a member of it.
  class EngineTicket final : public Ticket {
   public:
    EngineTicket(uint32_t rows, CompletionSink* sink, Prediction& prediction)
        : Ticket(rows, sink), prediction_(prediction) {}
    ~EngineTicket() override = default;
    Prediction& prediction() { return prediction_; }

   protected:
    void gather(float* dst) noexcept override { prediction_.gather(dst); }
    std::span<const WordRun> shared() const noexcept override { return prediction_.input_.shared_words; }
    fused_mlp_group group() const noexcept override { return prediction_.input_.group(rows()); }
    void complete(const Outcome& outcome) noexcept override { prediction_.complete(outcome); }
    void dispose() noexcept override { prediction_.release_from_engine(); }

   private:
    Prediction& prediction_;
  };

  enum class Elsewhere : uint8_t { no, decode, pack };  // what another thread does for it before it is queued

  void join(Call& call);
  bool read_path();
  void decode_later(size_t bytes);
  void work_later(Elsewhere what);
  void decode_elsewhere() noexcept;
  void on_decoded();
  void pack_records(uint32_t rows, Nanos trace_begin_ns);
  void on_packed(Nanos trace_begin_ns = 0);
  bool take_decoded(std::string_view problem);
  bool check_caller();
  bool choose_lane();
  bool take_quota(uint32_t rows);
  void submit(Nanos trace_begin_ns);
  void queue(uint32_t rows, Nanos trace_begin_ns);
  void expect_answer(uint32_t rows);
  void gather(float* dst) const noexcept;
  void complete(const Outcome& outcome) noexcept;
  void encode(const Outcome& outcome) noexcept;
  void keep_results(const Outcome& outcome) noexcept;
  bool encode_later() noexcept;
  void encode_elsewhere() noexcept;
  void fail(Status status, std::string_view text) noexcept;
  void refuse_for_memory();
  void run_out_of_memory() noexcept;
  void set_error(std::string_view text) noexcept;
  void answer(Call& call);
  void finish(Call& call) noexcept;
  void hide_internal_error();
  // The caller's trace, or the one that began here.
  const TraceContext& trace() const { return span_ != nullptr ? span_->parent : call_->head().trace(); }
  void count(int code);
  void finish_span(int code) noexcept;
  void leave();
  void release_from_engine() noexcept;

  Predictor& owner_;
  Call* call_ = nullptr;
  Prediction* previous_ = nullptr;  // others of the same call
  Prediction* next_ = nullptr;
  const Codec* codec_ = nullptr;
  Message message_;
  PredictInput input_;
  Charge<PeerAccount> own_bytes_;  // of input_: numbers that came in pieces, named tensors, their records
  Charge<PeerAccount> decoding_memory_;
  Charge<PeerAccount> expected_;  // the answer, until it has gone to the call
  LoopRoutes::Table* table_ = nullptr;
  const RouteEntry* entry_ = nullptr;
  Lane* lane_ = nullptr;
  Variant variant_ = Variant::unspecified;
  int64_t started_ns_ = 0;
  std::optional<EngineTicket> ticket_;
  std::unique_ptr<RequestSpan> span_;  // of a sampled request; the engine's while it has the ticket
  Nanos queue_ns_ = 0, compute_ns_ = 0;
  CallerRef in_flight_of_;       // counts it among the requests in flight; null: no caller does
  uint32_t retry_after_ms_ = 0;  // 0: as its lane says
  int abandoned_code_ = 0;
  Status status_ = Status::ok;
  ByteBuffer results_;  // (rows, out_features) float32, of an answer that is encoded elsewhere
  ByteBuffer answer_;
  size_t answer_head_ = 0;  // bytes of it in front of binary tensors: Codec::encode
  std::string error_;
  bool counted_ = false;  // its call ended before it did
  bool waiting_ = false;  // for its model
  Elsewhere elsewhere_ = Elsewhere::no;
  uint32_t rows_ = 0;  // of records that are packed elsewhere
  bool answered_ = false;
  std::atomic<int> holders_{0};  // the loop, and the engine while it has the ticket; the last one recycles
};

// Predict and ModelInfer, one request per call or a stream of them.
class PredictionMethod final : public Method {
 public:
  // `name`: a literal.
  PredictionMethod(Predictor& predictor, const Codec& codec, bool streams, std::string_view name)
      : predictor_(predictor), codec_(codec), streams_(streams), name_(name) {}
  bool client_streams() const override { return streams_; }
  std::string_view name() const override { return name_; }
  bool needs_caller() const override { return true; }
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
