// SPDX-License-Identifier: Apache-2.0
// grpc.health.v1.Health/Check, answered on the loop: probes must not wait behind other calls to Python.
// Python decides what the answers are and publishes them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "front/call/method.hpp"
#include "front/call/request_head.hpp"

namespace fused_mlp::front {

struct HealthAnswer {
  uint8_t status;  // grpc.health.v1.HealthCheckResponse.ServingStatus
  Metadata trailers;
  bool model = false;  // of a model, not of the server or one of its services
};

// The answers by service name. Thread-safe.
class HealthTable {
 public:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  using Answers = std::unordered_map<std::string, HealthAnswer, Hash, std::equal_to<>>;

  void publish(Answers answers);
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  std::shared_ptr<const Answers> answers() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Answers> answers_ = std::make_shared<Answers>();
  std::atomic<uint64_t> generation_{0};
};

// One per loop.
class HealthCheck final : public Method {
 public:
  // `callers`: null where every caller may ask for everything.
  HealthCheck(const HealthTable& table, LoopCallers* callers)
      : table_(table), callers_(callers), answers_(table.answers()) {}
  bool client_streams() const override { return false; }
  size_t max_message_bytes() const override { return 64u << 10; }
  void on_message(Call& call, Message&& message) override;

 private:
  const HealthTable& table_;
  LoopCallers* const callers_;
  std::shared_ptr<const HealthTable::Answers> answers_;
  uint64_t generation_ = 0;
};

}  // namespace fused_mlp::front
