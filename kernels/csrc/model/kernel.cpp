#include "model/kernel.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>

#include "model/float_mode.hpp"
#include "profile/phases.hpp"
#include "threads/pool.hpp"

namespace fused_mlp {

namespace {

// Larger models are read from memory on every call, not from a cache. A constant, because virtual machines do
// not report the size of their share of the last level cache.
constexpr std::size_t kStreamedBytes = std::size_t{24} << 20;

int run_c(void* ctx, const float* x, std::size_t rows, float* y, unsigned busy, char* error,
          std::size_t error_size) {
  try {
    static_cast<const MlpKernel*>(ctx)->run(x, rows, y, busy);
    return 0;
  } catch (const std::exception& e) {
    if (error_size > 0) std::snprintf(error, error_size, "CPU kernel: %s", e.what());
    return 1;
  }
}

const char* strategy_c(void* ctx, std::size_t rows) {
  return static_cast<const MlpKernel*>(ctx)->strategy(rows);
}

}  // namespace

MlpKernel::MlpKernel(const std::vector<LayerSource>& layers, Activation output, float output_slope,
                     unsigned threads, const char* isa)
    : isa_(choose_isa(isa)), threads_(threads) {
  if (layers.empty()) throw std::invalid_argument("expected at least one layer, got none");
  if (threads == 0 || threads > Pool::kMaxThreads) {
    throw std::invalid_argument("threads: expected 1 to " + std::to_string(Pool::kMaxThreads) + ", got " +
                                std::to_string(threads));
  }
  for (const LayerSource& source : layers) {
    const RecordedPhase phase(Phase::kPack, storage_.size(), source.out, source.in, source.out);
    storage_.push_back(pack_layer(source, isa_.panel));
  }
  for (const LayerStorage& storage : storage_) layers_.push_back(storage.packed);

  PackedLayer& last = layers_.back();
  if (is_elementwise(output) && !last.gated) {
    last.activation = output;
    last.negative_slope = output_slope;
  } else {
    finish_ = output;
    finish_slope_ = output_slope;
  }

  std::size_t widest = 0;
  std::size_t floats = 0;
  for (const LayerStorage& storage : storage_) {
    widest = std::max(widest, storage.packed.panels * isa_.panel);
    floats += storage.weights.size();
  }
  for (PackedLayer& layer : layers_) layer.streamed = floats * sizeof(float) > kStreamedBytes;
  // An odd number of cache lines: with a power of two, all rows would map to the same cache sets.
  scratch_stride_ = (widest + 31) / 32 * 32 + 16;
  planner_ = std::make_unique<Planner>(layers_, isa_, threads_);
  api_ = {FUSED_MLP_KERNEL_ABI, this, layers_.front().in, last.out, run_c, strategy_c};
}

void MlpKernel::run(const float* x, std::size_t rows, float* y, unsigned busy) const {
  if (rows == 0) return;
  [[maybe_unused]] const FloatMode mode;
  if (threads_ == 1) return run_planned(planner_->plan(rows), x, rows, y);
  // A low-priority caller is not counted: otherwise the others would get a thread less.
  if (busy == std::numeric_limits<unsigned>::max()) {
    Plan alone = planner_->plan_alone(rows);
    alone.threads = 1;
    return run_planned(alone, x, rows, y);
  }
  const Pool::CallerScope caller(Pool::shared());
  const unsigned threads = caller.free_threads(threads_, busy);
  Plan plan = threads == 1 ? planner_->plan_alone(rows) : planner_->plan(rows);
  plan.threads = std::min(plan.threads, threads);
  run_planned(plan, x, rows, y);
}

}  // namespace fused_mlp
