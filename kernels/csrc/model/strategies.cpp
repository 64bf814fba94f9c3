// SPDX-License-Identifier: Apache-2.0
// How a plan is run: all operations for a block of rows on one thread, or one by one on all threads.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>

#include "model/kernel.hpp"
#include "profile/phases.hpp"
#include "threads/claims.hpp"
#include "threads/pool.hpp"
#include "threads/spin.hpp"

namespace fused_mlp {

namespace {

// Rows per pass of the layer-by-layer strategies: enough to amortise reading the weights, few enough that the
// activations fit in the caches.
constexpr std::size_t kLayerRows = 512;

Phase phase_of(RowKind kind) {
  switch (kind) {
    case RowKind::kMap:
      return Phase::kMap;
    case RowKind::kCombine:
      return Phase::kCombine;
    case RowKind::kAffine:
      return Phase::kAffine;
    case RowKind::kLayerNorm:
    case RowKind::kRmsNorm:
    case RowKind::kL2Norm:
      return Phase::kNorm;
    case RowKind::kSoftmax:
    case RowKind::kLogSoftmax:
      return Phase::kSoftmax;
    case RowKind::kDot:
    case RowKind::kReduce:
      return Phase::kGroup;
    default:
      return Phase::kMap;
  }
}

}  // namespace

void MlpKernel::run_planned(const Plan& plan, const float* x, std::size_t rows, float* y) const {
  note_run(rows, plan.strategy);
  if (plan.strategy == Strategy::kRowBlock || plan.threads == 1) {
    run_row_blocks(plan, x, rows, y);
  } else {
    for (std::size_t row = 0; row < rows; row += kLayerRows) {
      run_stages(plan, x + row * in_features(), std::min(kLayerRows, rows - row), y + row * out_features());
    }
  }
}

std::size_t MlpKernel::x_stride(std::size_t rows) const {
  const std::size_t width = in_features();
  const bool aliases = program_.multiplies_input() && rows > kCacheWays && isa_.max_rows > kCacheWays &&
                       width % kAliasFloats == 0;
  return aliases ? width + kLineFloats : width;
}

MlpKernel::Frame::Frame(const MlpKernel& kernel, const float* x, std::size_t rows, float* y, unsigned copies)
    : rows(rows),
      x_stride(kernel.x_stride(rows)),
      first_copy(rows *
                 (kernel.program_.scratch_per_row() + (x_stride == kernel.in_features() ? 0 : x_stride))),
      scratch(first_copy + (copies - 1) * rows * kernel.program_.quantized_per_row()),
      bases{const_cast<float*>(x), y, scratch.data()} {
  const std::size_t width = kernel.in_features();
  if (x_stride == width) return;
  float* const copy = scratch.data() + rows * kernel.program_.scratch_per_row();
  for (std::size_t r = 0; r < rows; ++r) std::copy_n(x + r * width, width, copy + r * x_stride);
  bases[Region::kInput] = copy;
}

// All rows of the frame, panels [first, last).
void MlpKernel::run_product(std::size_t index, const Frame& frame, std::size_t first, std::size_t last,
                            unsigned copy) const {
  const Op& op = program_.ops()[index];
  const LayerCall call = {.x = frame.at(op.in, copy),
                          .x_stride = frame.stride(op.in),
                          .rows = frame.rows,
                          .y = frame.at(op.out),
                          .y_stride = op.out.stride,
                          .first = first,
                          .last = last,
                          .padded = op.padded,
                          .other = frame.at(op.other),
                          .other_stride = frame.stride(op.other)};
  if (recording_phases()) [[unlikely]]
    return run_product_recorded(index, call);
  isa_.run_layer[static_cast<int>(op.layer.precision)](op.layer, call);
}

void MlpKernel::run_product_recorded(std::size_t index, const LayerCall& call) const {
  const Op& op = program_.ops()[index];
  const PackedLayer& layer = op.layer;
  const std::size_t width = layer.gated ? isa_.panel / 2 : isa_.panel;  // output columns per panel
  const std::size_t columns = std::min(width * call.last, layer.out) - width * call.first;
  const std::uint64_t products = std::uint64_t{call.rows} * layer.in * columns * (layer.gated ? 2 : 1);
  RecordedPhase phase(Phase::kLayer, op.number, call.rows, layer.in, columns, 2 * products);
  isa_.run_layer_timed[static_cast<int>(layer.precision)](layer, call, phase.tiles());
}

// Rows [row, row + rows) of the frame.
void MlpKernel::run_rows(std::size_t index, const Frame& frame, std::size_t row, std::size_t rows,
                         unsigned copy) const {
  const Op& op = program_.ops()[index];
  if (op.lookups > 0) {
    const std::span all(program_.lookups());
    return run_lookups(index, all.subspan(op.first_lookup, op.lookups), frame, row, rows);
  }
  const RowCall call = {.x = frame.at(op.in) + row * frame.stride(op.in),
                        .x_stride = frame.stride(op.in),
                        .other = frame.at(op.other) + row * frame.stride(op.other),
                        .other_stride = frame.stride(op.other),
                        .rows = rows,
                        .y = frame.at(op.out, copy) + row * op.out.stride,
                        .y_stride = op.out.stride,
                        .third = frame.at(op.third) + row * frame.stride(op.third),
                        .third_stride = frame.stride(op.third)};
  if (recording_phases()) [[unlikely]]
    return run_rows_recorded(index, call);
  run_rows(op, call);
}

void MlpKernel::run_lookups(std::size_t index, std::span<const PlacedLookup> lookups, const Frame& frame,
                            std::size_t row, std::size_t rows) const {
  const Op& op = program_.ops()[index];
  constexpr std::size_t kAtOnce = 64;
  std::optional<RecordedPhase> phase;
  if (recording_phases()) [[unlikely]]
    phase.emplace(Phase::kLookup, op.number, rows, lookups.size(), op.row.width);
  LookupCall calls[kAtOnce];
  const PlacedLookup* each = lookups.data();
  for (std::size_t left = lookups.size(); left > 0;) {
    const std::size_t count = std::min(left, kAtOnce);
    for (std::size_t i = 0; i < count; ++i, ++each) {
      const std::size_t ids = frame.stride(each->ids), factors = frame.stride(each->factors);
      calls[i] = {.lookup = &each->lookup,
                  .ids = frame.at(each->ids) + row * ids,
                  .ids_stride = ids,
                  .factors = each->has_factors ? frame.at(each->factors) + row * factors : nullptr,
                  .factors_stride = factors,
                  .y = frame.at(each->out) + row * each->out.stride,
                  .y_stride = each->out.stride};
    }
    isa_.run_lookups(calls, count, rows);
    left -= count;
  }
}

void MlpKernel::run_rows(const Op& op, const RowCall& call) const {
  if (op.quantizes) return isa_.quantize(op.row.width, call);
  isa_.run_rows(op.row, call);
}

void MlpKernel::run_rows_recorded(std::size_t index, const RowCall& call) const {
  const Op& op = program_.ops()[index];
  const Phase kind = op.quantizes ? Phase::kQuantize : phase_of(op.row.kind);
  const RecordedPhase phase(kind, op.number, call.rows, op.row.width, op.row.width);
  run_rows(op, call);
}

// ---- row blocks: all operations on one thread ----

void MlpKernel::run_block(const float* x, std::size_t rows, float* y) const {
  const Frame frame(*this, x, rows, y);
  const std::vector<Op>& ops = program_.ops();
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].product) {
      run_product(i, frame, 0, ops[i].layer.panels);
    } else {
      run_rows(i, frame, 0, rows);
    }
  }
}

// Every participant has a range of rows of its own, cut into blocks of whole tiles: a thread that comes late
// or loses its core for a while leaves the blocks that it has not begun to the others, and alone a range
// makes the same tiles as it would uncut.
struct MlpKernel::RowBlockJob {
  const MlpKernel& kernel;
  const float* x;
  float* y;
  std::size_t rows;
  unsigned ranges;
  std::size_t range_rows;
  std::size_t range_blocks;
  Claims claims;
  std::atomic<bool> failed{false};

  RowBlockJob(const MlpKernel& kernel, const Plan& plan, const float* x, std::size_t rows, float* y)
      : kernel(kernel), x(x), y(y), rows(rows), ranges(std::min<unsigned>(plan.threads, Claims::kMost)) {
    range_rows = (rows + ranges - 1) / ranges;
    const std::size_t wanted = (range_rows + plan.block_rows - 1) / plan.block_rows;
    range_blocks = std::clamp<std::size_t>(wanted, 1, Claims::kMost / ranges);
  }

  void run_block(std::size_t block) const {
    const std::size_t begin = block / range_blocks * range_rows;
    const std::size_t end = std::min(begin + range_rows, rows);
    if (begin >= end) return;
    const std::size_t tiles = (end - begin) / kernel.isa_.max_rows;
    const std::size_t index = block % range_blocks;
    const auto cut = [&](std::size_t i) {  // the last block takes the rows that make no whole tile
      return i == range_blocks ? end : begin + tiles * i / range_blocks * kernel.isa_.max_rows;
    };
    const std::size_t first = cut(index), last = cut(index + 1);
    if (first == last) return;
    kernel.run_block(x + first * kernel.in_features(), last - first, y + first * kernel.out_features());
  }
  void work(unsigned participant) {
    const std::size_t blocks = ranges * range_blocks;
    claims.each(blocks, participant % ranges * range_blocks, [&](std::size_t block) { run_block(block); });
  }
  static void task(void* self, unsigned participant) {
    auto* job = static_cast<RowBlockJob*>(self);
    try {
      job->work(participant);
    } catch (const std::bad_alloc&) {
      job->failed.store(true, std::memory_order_relaxed);
    }
  }
};

void MlpKernel::run_row_blocks(const Plan& plan, const float* x, std::size_t rows, float* y) const {
  if (plan.threads == 1 && rows <= plan.block_rows) return run_block(x, rows, y);
  RowBlockJob job(*this, plan, x, rows, y);
  Pool::shared().run(plan.threads - 1, RowBlockJob::task, &job);
  if (job.failed.load(std::memory_order_relaxed)) throw std::bad_alloc();
}

// ---- one by one: each product's columns, and the rows of the other operations, split between the threads
// ----

struct MlpKernel::StageJob {
  // A stage is cut into chunks, which participants claim one by one. Each begins at its own position, so that
  // a core reads the same weights in every call and finds them in its cache; then it takes over the chunks
  // that slower participants have not begun.
  struct alignas(64) Progress {
    std::atomic<std::uint32_t> done{0};
    Claims claims;
  };
  // So many rows are quantized by every thread for itself: that takes less than a barrier.
  static constexpr std::size_t kFewRows = 5;
  static constexpr std::size_t kChunkWork = 800'000;  // multiply-adds: 10 us

  const MlpKernel& kernel;
  const Frame& frame;
  unsigned threads;
  alignas(Progress) std::byte
      progress_space[kMaxStages * sizeof(Progress)];  // initialised only for the stages in use

  Progress& progress(std::size_t s) {
    return *std::launder(reinterpret_cast<Progress*>(progress_space + s * sizeof(Progress)));
  }

  StageJob(const MlpKernel& kernel, const Frame& frame, unsigned threads)
      : kernel(kernel), frame(frame), threads(threads) {
    for (std::size_t s = 0; s < kernel.stages_.size(); ++s)
      new (&progress_space[s * sizeof(Progress)]) Progress;
  }

  // Panels or rows per chunk. Four chunks per thread, so that fast threads can take over from slow ones; more
  // of them if they take so long that the threads would wait for the last one.
  std::size_t chunk_size(const Op& op) const {
    const std::size_t least = threads * std::size_t{4};
    const std::size_t width = op.product ? op.layer.in * kernel.isa_.panel * op.layer.panels : op.row.width;
    const std::size_t wanted =
        std::min(std::clamp(frame.rows * width / kChunkWork, least, 4 * least), Claims::kMost);
    if (!op.product) return (frame.rows + wanted - 1) / wanted;
    const std::size_t unit = column_unit(frame.rows);
    return (op.layer.panels + wanted * unit - 1) / (wanted * unit) * unit;
  }

  void run_chunk(const Stage& stage, std::size_t first, std::size_t last, unsigned copy) const {
    if (kernel.program_.ops()[stage.first].product) {
      return kernel.run_product(stage.first, frame, first, last, copy);
    }
    for (std::size_t op = stage.first; op < stage.last; ++op) kernel.run_rows(op, frame, first, last - first);
  }

  void work(unsigned participant) {
    const bool few = frame.rows <= kFewRows;
    for (std::size_t s = 0; s < kernel.stages_.size(); ++s) {
      Stage stage = kernel.stages_[s];
      const std::vector<Op>& ops = kernel.program_.ops();
      if (few && ops[stage.last - 1].quantizes && --stage.last == stage.first) continue;
      const Op& op = ops[stage.first];
      bool quantizes = few && op.product && op.layer.precision == Precision::kInt8;
      const unsigned copy = quantizes ? participant : 0;
      const std::size_t size = op.product ? op.layer.panels : frame.rows;
      const std::size_t step = chunk_size(op);
      const std::size_t chunks = (size + step - 1) / step;
      Progress& state = progress(s);
      state.claims.each(chunks, chunks * participant / threads, [&](std::size_t chunk) {
        if (quantizes) kernel.run_rows(op.quantized_by, frame, 0, frame.rows, copy);
        quantizes = false;
        run_chunk(stage, chunk * step, std::min((chunk + 1) * step, size), copy);
        // Release this chunk's output; the threads that see the stage done acquire it.
        if (state.done.fetch_add(1, std::memory_order_acq_rel) + 1 == chunks) state.done.notify_all();
      });
      std::uint32_t done = state.done.load(std::memory_order_acquire);
      while (done != chunks) done = wait_while_equal(state.done, done);
    }
  }
  static void task(void* self, unsigned participant) { static_cast<StageJob*>(self)->work(participant); }
};

void MlpKernel::run_stages(const Plan& plan, const float* x, std::size_t rows, float* y) const {
  const Frame frame(*this, x, rows, y, rows <= StageJob::kFewRows ? plan.threads : 1);
  StageJob job(*this, frame, plan.threads);
  Pool::shared().run(plan.threads - 1, StageJob::task, &job);
}

}  // namespace fused_mlp
