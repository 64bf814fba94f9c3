// Predictions: from a message to the engine and back to an answer, for both APIs, one call or a stream of
// requests. One Inference per loop; all but EngineTicket's overrides run on the loop's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.hpp"
#include "engine/router.hpp"
#include "front/ask.hpp"
#include "front/call.hpp"
#include "front/codec.hpp"
#include "front/loop.hpp"

namespace fused_mlp::front {

class Inference;
class Prediction;

// Hears of requests that ended as INTERNAL, so that the id sent to the caller can be found in the log.
class FailureLog {
 public:
  virtual void on_failure(std::string_view request_id, std::string_view text) = 0;

 protected:
  ~FailureLog() = default;
};

// A table of routes and how many predictions still point into it.
struct HeldTable {
  std::shared_ptr<const RouteTable> table;
  uint64_t generation = 0;
  uint32_t users = 0;
};

// What the engine sees of a prediction. Lives inside it.
class EngineTicket final : public Ticket {
 public:
  EngineTicket(uint32_t rows, CompletionSink* sink, Prediction& prediction)
      : Ticket(rows, sink), prediction_(prediction) {}
  ~EngineTicket() override = default;

 protected:
  void gather(float* dst) noexcept override;
  void complete(const Outcome& outcome) noexcept override;
  void dispose() noexcept override;

 private:
  Prediction& prediction_;
};

// One request on its way. Recycled when the loop has answered it and the engine has let go of its ticket.
class Prediction final : public Completion {
 public:
  explicit Prediction(Inference& owner) : owner_(owner) {}
  void deliver() noexcept override;

 private:
  friend class EngineTicket;
  friend class Inference;

  void part_done() noexcept;

  Inference& owner_;
  Call* call_ = nullptr;
  Prediction* previous_ = nullptr;  // others of the same call
  Prediction* next_ = nullptr;
  const Codec* codec_ = nullptr;
  Message message_;
  Ask ask_;
  HeldTable* table_ = nullptr;
  const RouteEntry* entry_ = nullptr;
  Lane* lane_ = nullptr;
  Variant variant_ = Variant::unspecified;
  int64_t started_ns_ = 0;
  Buffer answer_;
  Status status_ = Status::ok;
  bool counted_ = false;  // its call ended before it did
  bool delivered_ = false;
  std::string detail_;
  std::optional<EngineTicket> ticket_;
  std::atomic<int> parts_{0};  // the loop's and the engine's; the last one done recycles
};

// All predictions of one loop.
class Inference {
 public:
  Inference(Loop& loop, Engine& engine, const Router& router, FailureLog& failures);
  ~Inference();
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;

  void submit(Call& call, Message&& message, const Codec& codec);
  // The call ended; `code` is what its unfinished requests are counted under.
  void abandon(Call& call, int code);
  void count_unrouted(int code, int64_t duration_ns) { engine_.unrouted().record(code, duration_ns); }
  bool run_ready();
  void look_for_new_table();
  bool idle() const { return out_ == 0; }

 private:
  friend class EngineTicket;
  friend class Prediction;

  Prediction* take(Call& call, Message&& message, const Codec& codec);
  void recycle(Prediction* prediction);
  void answer(Prediction& prediction);
  void fail(Prediction& prediction, Status status, std::string_view text);
  void leave_call(Prediction& prediction);
  void count(Prediction& prediction, int code);

  Loop& loop_;
  Engine& engine_;
  const Router& router_;
  FailureLog& failures_;
  InlineRunner runner_;
  std::unique_ptr<HeldTable> table_;
  std::vector<std::unique_ptr<HeldTable>> old_tables_;
  std::vector<Prediction*> free_;
  size_t out_ = 0;  // predictions not in free_
  bool submitted_ = false;
};

// The RPCs themselves.
class PredictionMethod final : public Method {
 public:
  PredictionMethod(Inference& inference, const Codec& codec, bool streams)
      : inference_(inference), codec_(codec), streams_(streams) {}
  bool client_streams() const override { return streams_; }
  void on_message(Call& call, Message&& message) override {
    inference_.submit(call, std::move(message), codec_);
  }
  void on_half_close(Call& call) override {
    if (call.attachment == nullptr) call.finish();
  }
  void on_cancel(Call& call) override { inference_.abandon(call, kCancelled); }
  void on_refuse(Call& call, int code) override;

 private:
  Inference& inference_;
  const Codec& codec_;
  const bool streams_;
};

}  // namespace fused_mlp::front
