// SPDX-License-Identifier: Apache-2.0
// The life of one prediction request, from a message to an answer; prediction.cpp tells it in the order of
// events. Everything runs on the loop's thread except the overrides of EngineTicket, which run where the
// batch does.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "codec/codec.hpp"
#include "engine/request_spans.hpp"
#include "front/grpc/call.hpp"
#include "front/methods/loop_routes.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {

class Predictor;

class Prediction final : public Delivery {
 public:
  explicit Prediction(Predictor& owner) : owner_(owner) {}

  void start(Call& call, Message&& message, const Codec& codec);
  // Choose a lane and submit: after it has waited for its model.
  bool waits() const { return waiting_; }
  void work_elsewhere() noexcept;  // on a CodecThread: decodes the message, or encodes the answer
  void proceed(Nanos trace_begin_ns = 0);
  void deliver() noexcept override;
  // Its call ended early. What the engine still computes for it is thrown away.
  void abandon(int code);
  void reset();  // for the next request
  // The engine did not take it.
  void on_refused(Status status) noexcept;
  static Prediction& of(Ticket& ticket);  // a ticket of add_to_round

  // The unfinished requests of a call.
  static Prediction* first_of(const Call& call) { return static_cast<Prediction*>(call.attachment); }
  Prediction* next_of_call() const { return next_; }

 private:
  // What the engine sees. Lives inside the prediction.
  class EngineTicket final : public Ticket {
   public:
    EngineTicket(uint32_t rows, CompletionSink* sink, Prediction& prediction)
        : Ticket(rows, sink), prediction_(prediction) {}
    ~EngineTicket() override = default;
    Prediction& prediction() { return prediction_; }

   protected:
    void gather(float* dst) noexcept override { prediction_.gather(dst); }
    void complete(const Outcome& outcome) noexcept override { prediction_.complete(outcome); }
    void dispose() noexcept override { prediction_.release_from_engine(); }

   private:
    Prediction& prediction_;
  };

  void join(Call& call);
  bool read_path();
  void decode_later(size_t bytes);
  void decode_elsewhere() noexcept;
  void on_decoded();
  bool take_decoded(std::string_view problem);
  bool choose_lane();
  void submit(Nanos trace_begin_ns);
  void expect_answer(uint32_t rows);
  void gather(float* dst) const noexcept;
  void complete(const Outcome& outcome) noexcept;
  void encode(const Outcome& outcome) noexcept;
  void keep_results(const Outcome& outcome) noexcept;
  bool encode_later() noexcept;
  void encode_elsewhere() noexcept;
  void fail(Status status, std::string_view text) noexcept;
  void set_error(std::string_view text) noexcept;
  void answer(Call& call);
  void finish(Call& call) noexcept;
  void hide_internal_error();
  // Of the caller, or of the trace that began here.
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
  Charge<PeerAccount> scattered_;  // a copy of the numbers, where they came in pieces
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
  int abandoned_code_ = 0;
  Status status_ = Status::ok;
  ByteBuffer results_;  // (rows, out_features) float32, of an answer that is encoded elsewhere
  ByteBuffer answer_;
  size_t answer_head_ = 0;  // bytes of it in front of binary tensors: Codec::encode
  std::string error_;
  bool counted_ = false;  // its call ended before it did
  bool waiting_ = false;  // for its model
  bool decoding_ = false;
  bool answered_ = false;
  std::atomic<int> holders_{0};  // the loop, and the engine while it has the ticket; the last one recycles
};

}  // namespace fused_mlp::front
