#include "kernel.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>

#include "float_mode.hpp"
#include "phases.hpp"
#include "pool.hpp"
#include "spin.hpp"

namespace fused_mlp {

namespace {

// A model of this size and more is read from memory, not from a cache, on every call. A share of the last
// level cache, which virtual machines do not report truthfully.
constexpr std::size_t kStreamedBytes = std::size_t{24} << 20;

// Rows that go layer by layer together: enough to be done with the weights, few enough for the caches.
constexpr std::size_t kLayerRows = 512;

// Activations between layers. One per thread and reused, so that a call allocates nothing once warm.
float* scratch(std::size_t floats) {
  thread_local FloatBuffer buffer;
  if (buffer.size() < floats) {
    buffer = FloatBuffer();  // free the old one first
    buffer = FloatBuffer(floats);
  }
  return buffer.data();
}

int run_c(void* ctx, const float* x, std::size_t rows, float* y, unsigned busy, char* error,
          std::size_t error_size) {
  try {
    static_cast<const MlpKernel*>(ctx)->run(x, rows, y, busy);
    return 0;
  } catch (const std::exception& e) {
    if (error_size > 0) std::snprintf(error, error_size, "native kernel: %s", e.what());
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
  if (threads == 0 || threads > Pool::kMostThreads) {
    throw std::invalid_argument("threads: expected 1 to " + std::to_string(Pool::kMostThreads) + ", got " +
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
  // An odd number of cache lines: rows of a power of two would all fall into the same cache sets.
  scratch_stride_ = (widest + 31) / 32 * 32 + 16;
  planner_ = std::make_unique<Planner>(layers_, isa_, threads_);
  api_ = {FUSED_MLP_KERNEL_ABI, this, layers_.front().in, last.out, run_c, strategy_c};
}

void MlpKernel::run(const float* x, std::size_t rows, float* y, unsigned busy) const {
  if (rows == 0) return;
  [[maybe_unused]] const FloatMode mode;
  if (threads_ == 1) return run_planned(planner_->plan(rows), x, rows, y);
  // Who gives way to all others takes no turn either: a turn would cost them a thread.
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

void MlpKernel::run_planned(const Plan& plan, const float* x, std::size_t rows, float* y) const {
  if (plan.strategy == Strategy::kRowBlock || plan.threads == 1) {
    run_row_blocks(plan, x, rows, y);
  } else {
    for (std::size_t row = 0; row < rows; row += kLayerRows) {
      run_layers(plan, x + row * in_features(), std::min(kLayerRows, rows - row), y + row * out_features());
    }
  }
}

void MlpKernel::finish_rows(float* y, std::size_t rows) const {
  if (finish_ == Activation::kIdentity) return;
  const std::size_t n = out_features();
  const RecordedPhase phase(Phase::kFinish, layers_.size(), rows, n, n);
  if (is_elementwise(finish_)) return isa_.activate(finish_, finish_slope_, y, y, rows * n);
  for (std::size_t r = 0; r < rows; ++r) isa_.softmax(y + r * n, n, finish_ == Activation::kLogSoftmax);
}

void MlpKernel::run_layer(std::size_t l, const LayerCall& call) const {
  if (recording_phases()) [[unlikely]]
    return run_layer_recorded(l, call);
  isa_.run_layer(layers_[l], call);
}

void MlpKernel::run_layer_recorded(std::size_t l, const LayerCall& call) const {
  const PackedLayer& layer = layers_[l];
  const std::size_t width = layer.gated ? isa_.panel / 2 : isa_.panel;  // of the result, per panel
  const std::size_t columns = std::min(width * call.last, layer.out) - width * call.first;
  const std::uint64_t products = std::uint64_t{call.rows} * layer.in * columns * (layer.gated ? 2 : 1);
  RecordedPhase phase(Phase::kLayer, l, call.rows, layer.in, columns, 2 * products);
  isa_.run_layer_timed(layer, call, phase.tiles());
}

// ---- row blocks: through all layers, on one thread ----

void MlpKernel::run_block(const float* x, std::size_t rows, float* y) const {
  float* const space = layers_.size() > 1 ? scratch(2 * rows * scratch_stride_) : nullptr;
  const float* in = x;
  std::size_t in_stride = in_features();
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const bool last = l + 1 == layers_.size();
    float* const out = last ? y : space + (l % 2) * rows * scratch_stride_;
    const std::size_t out_stride = last ? out_features() : scratch_stride_;
    run_layer(l, {in, in_stride, rows, out, out_stride, 0, layers_[l].panels, !last});
    in = out;
    in_stride = out_stride;
  }
  finish_rows(y, rows);
}

struct MlpKernel::RowBlockJob {
  const MlpKernel& kernel;
  const float* x;
  float* y;
  std::size_t rows;
  std::size_t block;
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};

  void work() {
    while (true) {
      const std::size_t row = next.fetch_add(block, std::memory_order_relaxed);
      if (row >= rows) return;
      const std::size_t count = std::min(block, rows - row);
      kernel.run_block(x + row * kernel.in_features(), count, y + row * kernel.out_features());
    }
  }
  static void task(void* self, unsigned) {
    auto* job = static_cast<RowBlockJob*>(self);
    try {
      job->work();
    } catch (const std::bad_alloc&) {
      job->failed.store(true, std::memory_order_relaxed);
    }
  }
};

void MlpKernel::run_row_blocks(const Plan& plan, const float* x, std::size_t rows, float* y) const {
  if (rows <= plan.block_rows) return run_block(x, rows, y);
  RowBlockJob job{*this, x, y, rows, plan.block_rows};
  const std::size_t blocks = (rows + plan.block_rows - 1) / plan.block_rows;
  const std::size_t helpers = std::min<std::size_t>(plan.threads, blocks) - 1;
  Pool::shared().run(static_cast<unsigned>(helpers), RowBlockJob::task, &job);
  if (job.failed.load(std::memory_order_relaxed)) throw std::bad_alloc();
}

// ---- layer by layer: columns shared out between threads ----

struct MlpKernel::LayerJob {
  // A layer's columns in up to 64 chunks. Participants claim them one by one, each beginning at its own
  // share, so that a core finds the weights it read last time in its cache, and takes over what a slower
  // one has not begun.
  struct alignas(64) Progress {
    std::atomic<std::uint64_t> claimed{0};
    std::atomic<std::uint32_t> done{0};
  };
  static constexpr std::size_t kMaxLayers = 256;

  const MlpKernel& kernel;
  const float* x;
  float* y;
  std::size_t rows;
  unsigned threads;
  float* space;
  alignas(Progress) std::byte
      progress_space[kMaxLayers * sizeof(Progress)];  // only what is used is initialised

  Progress& progress(std::size_t l) {
    return *std::launder(reinterpret_cast<Progress*>(progress_space + l * sizeof(Progress)));
  }

  LayerJob(const MlpKernel& kernel, const float* x, float* y, std::size_t rows, unsigned threads,
           float* space)
      : kernel(kernel), x(x), y(y), rows(rows), threads(threads), space(space) {
    for (std::size_t l = 0; l < kernel.layers_.size(); ++l)
      new (&progress_space[l * sizeof(Progress)]) Progress;
  }

  std::size_t chunk_panels(const PackedLayer& layer) const {
    // Four chunks per thread leave something to take over; four panels are what one row works on at once.
    const std::size_t wanted = std::min<std::size_t>(threads * std::size_t{4}, 64);
    const std::size_t panels = (layer.panels + wanted - 1) / wanted;
    return rows <= 3 ? (panels + 3) / 4 * 4 : panels;
  }

  void work(unsigned participant) {
    const float* in = x;
    std::size_t in_stride = kernel.in_features();
    for (std::size_t l = 0; l < kernel.layers_.size(); ++l) {
      const PackedLayer& layer = kernel.layers_[l];
      const bool last = l + 1 == kernel.layers_.size();
      float* const out = last ? y : space + (l % 2) * rows * kernel.scratch_stride_;
      const std::size_t out_stride = last ? kernel.out_features() : kernel.scratch_stride_;
      const std::size_t step = chunk_panels(layer);
      const std::size_t chunks = (layer.panels + step - 1) / step;
      Progress& state = progress(l);
      const std::size_t start = chunks * participant / threads;
      for (std::size_t i = 0; i < chunks; ++i) {
        const std::size_t chunk = (start + i) % chunks;
        const std::uint64_t bit = std::uint64_t{1} << chunk;
        if ((state.claimed.load(std::memory_order_relaxed) & bit) != 0) continue;
        if ((state.claimed.fetch_or(bit, std::memory_order_relaxed) & bit) != 0) continue;
        const std::size_t first = chunk * step;
        kernel.run_layer(
            l, {in, in_stride, rows, out, out_stride, first, std::min(first + step, layer.panels), !last});
        // Release what we wrote; whoever sees the layer done acquires it.
        if (state.done.fetch_add(1, std::memory_order_acq_rel) + 1 == chunks) state.done.notify_all();
      }
      std::uint32_t done = state.done.load(std::memory_order_acquire);
      while (done != chunks) done = wait_while_equal(state.done, done);
      in = out;
      in_stride = out_stride;
    }
  }
  static void task(void* self, unsigned participant) { static_cast<LayerJob*>(self)->work(participant); }
};

void MlpKernel::run_layers(const Plan& plan, const float* x, std::size_t rows, float* y) const {
  if (layers_.size() > LayerJob::kMaxLayers) return run_row_blocks({plan.strategy, 1, rows}, x, rows, y);
  float* const space = layers_.size() > 1 ? scratch(2 * rows * scratch_stride_) : nullptr;
  LayerJob job(*this, x, y, rows, plan.threads, space);
  Pool::shared().run(plan.threads - 1, LayerJob::task, &job);
  finish_rows(y, rows);
}

}  // namespace fused_mlp
