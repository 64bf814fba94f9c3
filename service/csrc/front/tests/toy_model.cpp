// SPDX-License-Identifier: Apache-2.0
#include "toy_model.hpp"

#include <utility>

namespace fused_mlp::front::test {
namespace {

constexpr size_t kInputs = 64, kOutputs = 10;
constexpr float kPoison = 666;

class ToyKernel final : public Kernel {
 public:
  explicit ToyKernel(bool left_to_workers) : left_to_workers_(left_to_workers) {}
  bool needs_worker() const noexcept override { return left_to_workers_; }
  void run(const BatchBuffer& x, size_t first, size_t rows, const BatchBuffer& y,
           KernelResult& result) noexcept override {
    for (size_t row = first; row < first + rows; ++row) {
      const float* in = x.data().get() + row * kInputs;
      float* out = y.data().get() + row * kOutputs;
      if (in[0] == kPoison) {
        result.failed = true;
        result.error = "a poisoned row";
        return;
      }
      for (size_t j = 0; j < kOutputs; ++j) out[j] = 0;
      for (size_t i = 0; i < kInputs; ++i) out[i % kOutputs] += in[i];
    }
    result.strategy = "toy";
  }

 private:
  const bool left_to_workers_;
};

EngineOptions options(unsigned workers, std::shared_ptr<Clock> clock) {
  EngineOptions result;
  result.clock = std::move(clock);
  result.workers = workers;
  return result;
}

}  // namespace

ToyService::ToyService(unsigned workers, uint32_t queue_rows, uint32_t max_request_rows,
                       std::shared_ptr<Clock> clock)
    : engine(options(workers, std::move(clock))) {
  LaneOptions lane;
  lane.in_features = kInputs;
  lane.out_features = kOutputs;
  lane.queue_rows = queue_rows;
  RouteEntry entry;
  entry.model = "digits";
  entry.allow_override = true;
  entry.in_features = kInputs;
  entry.out_features = kOutputs;
  entry.max_request_rows = max_request_rows;
  lane.name = "digits/1/fused";
  entry.fused = engine.add_lane(lane, std::make_unique<ToyKernel>(false));
  lane.name = "digits/1/unfused";
  entry.unfused = engine.add_lane(lane, std::make_unique<ToyKernel>(workers != 0));
  // The same numbers as two outputs of a model that takes images.
  RouteEntry heads = entry;
  heads.model = "heads";
  heads.heads = {{"pi", 0, kOutputs - 1, false}, {"v", kOutputs - 1, 1, true}};
  heads.input_shape = {1, 8, 8};
  router.publish({entry, heads});
}

}  // namespace fused_mlp::front::test
