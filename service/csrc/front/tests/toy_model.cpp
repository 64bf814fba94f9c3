// SPDX-License-Identifier: Apache-2.0
#include "toy_model.hpp"

#include <bit>
#include <cstdlib>
#include <utility>

#include "codec/input_layout.hpp"

namespace fused_mlp::front::test {
namespace {

constexpr size_t kInputs = 64, kOutputs = 10;
constexpr float kPoison = 666;
constexpr size_t kBag = 40;

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

// As many words as a row of the others has.
std::shared_ptr<const InputLayout> ranker_layout() {
  using Op = InputRule::Op;
  auto words = std::make_shared<const Vocabulary>(std::vector<std::string>{"de", "fr"}, 2);
  std::vector<NamedInput> inputs;
  inputs.push_back({"bag", InputKind::whole, {kBag}, true, nullptr, {{100}}});
  inputs.push_back({"word", InputKind::strings, {}, false, words, {{3}}});
  inputs.push_back(
      {"time", InputKind::whole, {}, false, nullptr, {{7, {{Op::modulo, {7}}}}, {0, {{Op::add, {-5}}}}}});
  inputs.push_back({"x", InputKind::floats, {kInputs - kBag - 3}, false, nullptr, {{}}});
  return std::make_shared<const InputLayout>(std::move(inputs));
}

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
  RouteEntry ranker = entry;
  ranker.model = "ranker";
  ranker.layout = ranker_layout();
  router.publish({entry, heads, ranker});
}

void check_record(const float* record) {
  const auto id = [&](size_t word) { return std::bit_cast<int32_t>(record[word]); };
  for (size_t i = 0; i < kBag; ++i) {
    if (id(i) < kAbsent || id(i) >= 100) std::abort();
  }
  if (id(kBag) < 0 || id(kBag) >= 3 || id(kBag + 1) < 0 || id(kBag + 1) >= 7) std::abort();
}

}  // namespace fused_mlp::front::test
