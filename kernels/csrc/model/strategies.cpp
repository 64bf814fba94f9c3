// How a plan is run: all layers for a block of rows on one thread, or layer by layer on all threads.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

#include "model/float_buffer.hpp"
#include "model/kernel.hpp"
#include "profile/phases.hpp"
#include "threads/pool.hpp"
#include "threads/spin.hpp"

namespace fused_mlp {

namespace {

// Rows per pass of the layer-by-layer strategies: enough to amortise reading the weights, few enough that the
// activations fit in the caches.
constexpr std::size_t kLayerRows = 512;

// The activations between layers. Each thread keeps one buffer, so that later calls allocate nothing.
float* scratch(std::size_t floats) {
  thread_local FloatBuffer buffer;
  if (buffer.size() < floats) {
    buffer = FloatBuffer();  // free the old one before allocating
    buffer = FloatBuffer(floats);
  }
  return buffer.data();
}

}  // namespace

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
  const std::size_t width = layer.gated ? isa_.panel / 2 : isa_.panel;  // output columns per panel
  const std::size_t columns = std::min(width * call.last, layer.out) - width * call.first;
  const std::uint64_t products = std::uint64_t{call.rows} * layer.in * columns * (layer.gated ? 2 : 1);
  RecordedPhase phase(Phase::kLayer, l, call.rows, layer.in, columns, 2 * products);
  isa_.run_layer_timed(layer, call, phase.tiles());
}

// ---- row blocks: all layers on one thread ----

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

// ---- layer by layer: each layer's columns split between the threads ----

struct MlpKernel::LayerJob {
  // A layer's columns are cut into up to 64 chunks, which participants claim one by one. Each begins at its
  // own position, so that a core reads the same weights in every call and finds them in its cache; then it
  // takes over the chunks that slower participants have not begun.
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
      progress_space[kMaxLayers * sizeof(Progress)];  // initialised only for the layers in use

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
    // Four chunks per thread, so that fast threads can take over from slow ones. Few rows: multiples of four
    // panels, the number that a tile of one row computes at once.
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
        // Release this chunk's output; the threads that see the layer done acquire it.
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
