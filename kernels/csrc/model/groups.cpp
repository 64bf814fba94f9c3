// SPDX-License-Identifier: Apache-2.0
// How rows that have words in common are run: first what they have in common, for all groups at once, then
// the rows, block by block.
#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <span>

#include "model/float_mode.hpp"
#include "model/kernel.hpp"
#include "model/split.hpp"
#include "threads/claims.hpp"
#include "threads/pool.hpp"

namespace fused_mlp {

// The groups of one call, and what is kept of them.
struct MlpKernel::GroupJob {
  const MlpKernel& kernel;
  const Split& split;
  std::span<const fused_mlp_group> groups;
  std::vector<std::size_t> begins;  // the first row of each group, and the number of all
  std::unique_ptr<float[]> kept;    // (groups, split.kept())
  float* y;
  std::size_t block_rows = 1;
  std::size_t blocks = 1;
  Claims claims;
  std::atomic<bool> failed{false};

  GroupJob(const MlpKernel& kernel, const Split& split, std::span<const fused_mlp_group> groups, float* y)
      : kernel(kernel), split(split), groups(groups), y(y) {
    begins.reserve(groups.size() + 1);
    begins.push_back(0);
    for (const fused_mlp_group& group : groups) begins.push_back(begins.back() + group.rows);
    kept.reset(new float[groups.size() * split.kept()]);
  }
  std::size_t rows() const { return begins.back(); }
  float* kept_of(std::size_t group) const { return kept.get() + group * split.kept(); }

  void compute_groups();
  void sum_products(const Split::Part& part, const Frame& frame, std::size_t first);
  void run_block(std::size_t first, std::size_t rows) const;
  void run_product(const Split::Part& part, const Frame& frame, std::size_t first) const;
  // Calls action(group, row, count) for the rows of the block, group by group; rows count from its first.
  template <class Action>
  void each_group(std::size_t first, std::size_t rows, Action action) const {
    std::size_t group =
        static_cast<std::size_t>(std::upper_bound(begins.begin(), begins.end(), first) - begins.begin()) - 1;
    for (std::size_t row = first; row < first + rows; ++group) {
      const std::size_t end = std::min(begins[group + 1], first + rows);
      if (end > row) action(group, row - first, end - row);
      row = end;
    }
  }
  void work() {
    claims.each(blocks, 0, [&](std::size_t block) {
      const std::size_t first = block * block_rows;
      run_block(first, std::min(block_rows, rows() - first));
    });
  }
  static void task(void* self, unsigned) {
    auto* job = static_cast<GroupJob*>(self);
    try {
      job->work();
    } catch (const std::bad_alloc&) {
      job->failed.store(true, std::memory_order_relaxed);
    }
  }
};

// An array of rows of x beside the scratch space, which begins uninitialised.
MlpKernel::Frame::Frame(const MlpKernel& kernel, std::size_t rows, float* y)
    : rows(rows),
      x_stride((kernel.in_features() + kLineFloats - 1) / kLineFloats * kLineFloats +
               (kernel.in_features() % kAliasFloats == 0 ? kLineFloats : 0)),
      first_copy(0),
      scratch(rows * (kernel.program_.scratch_per_row() + x_stride)),
      bases{scratch.data() + rows * kernel.program_.scratch_per_row(), y, scratch.data()} {}

namespace {

// Side by side -> where they belong in a row.
void spread(const std::vector<fused_mlp_words>& runs, const float* from, float* x) {
  for (const fused_mlp_words& run : runs) {
    const std::size_t width = run.last - run.first;
    for (std::size_t i = 0; i < width; ++i) x[run.first + i] = from[i];
    from += width;
  }
}

}  // namespace

void MlpKernel::GroupJob::compute_groups() {
  const std::size_t out = kernel.out_features();
  const std::size_t most = std::max<std::size_t>(1, kernel.planner_->plan_alone(groups.size()).block_rows);
  const std::unique_ptr<float[]> outputs(new float[std::min(most, groups.size()) * out]);
  for (std::size_t first = 0; first < groups.size(); first += most) {
    const Frame frame(kernel, std::min(most, groups.size() - first), outputs.get());
    for (std::size_t g = 0; g < frame.rows; ++g) {
      spread(split.shared(), groups[first + g].shared, frame.bases[Region::kInput] + g * frame.x_stride);
    }
    for (const Split::Part& part : split.groups()) {
      for (const Split::Copy& copy : part.copies) {
        const float* const from = frame.at(copy.place);
        for (std::size_t g = 0; g < frame.rows; ++g) {
          std::copy_n(from + g * frame.stride(copy.place), copy.width, kept_of(first + g) + copy.kept);
        }
      }
      if (part.start != Split::kNone || !part.sums.empty()) {
        sum_products(part, frame, first);
      } else if (!part.lookups.empty()) {
        kernel.run_lookups(part.op, part.lookups, frame, 0, frame.rows);
      } else if (part.runs) {
        const Op& op = kernel.program_.ops()[part.op];
        op.product ? kernel.run_product(part.op, frame, 0, op.layer.panels)
                   : kernel.run_rows(part.op, frame, 0, frame.rows);
      }
    }
  }
}

// Sums of blocks, whole panels of them, without the functions after the product.
void MlpKernel::GroupJob::sum_products(const Split::Part& part, const Frame& frame, std::size_t first) {
  const Op& op = kernel.program_.ops()[part.op];
  PackedLayer layer = op.layer;
  layer.out = layer.panels * kernel.isa_.panel;
  layer.gated = false;
  layer.function = {};
  layer.epilogue = nullptr;
  LayerCall call = {.x = frame.at(op.in),
                    .x_stride = frame.stride(op.in),
                    .rows = frame.rows,
                    .y = kept_of(first),
                    .y_stride = split.kept(),
                    .first = 0,
                    .last = layer.panels,
                    .padded = true,
                    .other = frame.at(op.in),
                    .other_stride = frame.stride(op.in)};
  const auto run = [&](std::size_t column, std::size_t count, const float* start, std::size_t kept) {
    const SumPart products{column, count, 0};
    call.start = start;
    call.parts = &products;
    call.part_count = 1;
    call.y = kept_of(first) + kept;
    kernel.isa_.run_layer[static_cast<int>(layer.precision)](layer, call);
  };
  if (part.start != Split::kNone) run(0, part.first, layer.bias, part.start);
  for (const SumPart& sum : part.sums) run(sum.first, sum.count, kernel.negative_zeros_.data(), sum.sum);
}

void MlpKernel::GroupJob::run_block(std::size_t first, std::size_t rows) const {
  const Frame frame(kernel, rows, y + first * kernel.out_features());
  each_group(first, rows, [&](std::size_t group, std::size_t row, std::size_t count) {
    const float* own = groups[group].own + (first + row - begins[group]) * split.own_width();
    float* x = frame.bases[Region::kInput] + row * frame.x_stride;
    for (std::size_t r = 0; r < count; ++r, own += split.own_width(), x += frame.x_stride) {
      spread(split.own(), own, x);
    }
  });
  for (const Split::Part& part : split.rows()) {
    for (const Split::Copy& copy : part.copies) {
      const std::size_t stride = frame.stride(copy.place);
      each_group(first, rows, [&](std::size_t group, std::size_t row, std::size_t count) {
        const float* const from = kept_of(group) + copy.kept;
        float* to = frame.at(copy.place) + row * stride;
        for (std::size_t r = 0; r < count; ++r, to += stride) std::copy_n(from, copy.width, to);
      });
    }
    if (!part.runs) continue;
    const Op& op = kernel.program_.ops()[part.op];
    if (!part.lookups.empty()) {
      kernel.run_lookups(part.op, part.lookups, frame, 0, rows);
    } else if (!op.product) {
      kernel.run_rows(part.op, frame, 0, rows);
    } else if (part.start == Split::kNone && part.sums.empty()) {
      kernel.run_product(part.op, frame, 0, op.layer.panels);
    } else {
      run_product(part, frame, first);
    }
  }
}

void MlpKernel::GroupJob::run_product(const Split::Part& part, const Frame& frame, std::size_t first) const {
  const Op& op = kernel.program_.ops()[part.op];
  const std::size_t x_stride = frame.stride(op.in), other_stride = frame.stride(op.other);
  each_group(first, frame.rows, [&](std::size_t group, std::size_t row, std::size_t count) {
    const LayerCall call = {.x = frame.at(op.in) + row * x_stride,
                            .x_stride = x_stride,
                            .rows = count,
                            .y = frame.at(op.out) + row * op.out.stride,
                            .y_stride = op.out.stride,
                            .first = 0,
                            .last = op.layer.panels,
                            .padded = op.padded,
                            .other = frame.at(op.other) + row * other_stride,
                            .other_stride = other_stride,
                            .start = part.start == Split::kNone ? op.layer.bias : kept_of(group) + part.start,
                            .parts = part.sums.data(),
                            .part_count = part.sums.size(),
                            .sums = kept_of(group)};
    kernel.isa_.run_layer[static_cast<int>(op.layer.precision)](op.layer, call);
  });
}

const Split* MlpKernel::split_of(std::span<const fused_mlp_words> shared) const {
  const std::size_t made = splits_made_.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < made; ++i) {
    if (splits_[i]->is_for(shared)) return splits_[i].get();
  }
  const std::lock_guard lock(splitting_);
  const std::size_t now = splits_made_.load(std::memory_order_relaxed);
  for (std::size_t i = made; i < now; ++i) {
    if (splits_[i]->is_for(shared)) return splits_[i].get();
  }
  if (now == kMaxSplits) return nullptr;
  splits_[now] = std::make_unique<const Split>(program_, shared, isa_.panel);
  splits_made_.store(now + 1, std::memory_order_release);
  return splits_[now].get();
}

void MlpKernel::run_groups(std::span<const fused_mlp_words> shared, std::span<const fused_mlp_group> groups,
                           float* y, unsigned busy) const {
  [[maybe_unused]] const FloatMode mode;
  const Split* split = split_of(shared);
  std::unique_ptr<const Split> own;  // where too many sets of inputs are in use to keep them all
  if (split == nullptr) {
    own = std::make_unique<const Split>(program_, shared, isa_.panel);
    split = own.get();
  }
  GroupJob job(*this, *split, groups, y);
  if (job.rows() == 0) return;
  note_run(job.rows(), Strategy::kRowBlock);
  job.compute_groups();
  // As many threads as whole rows of the same work would be given.
  const auto work = static_cast<std::size_t>(static_cast<double>(job.rows()) * split->row_share()) + 1;
  unsigned threads = 1;
  const auto run = [&] {
    job.block_rows = planner_->plan_alone(job.rows()).block_rows;
    if (threads > 1) {
      const std::size_t each = (job.rows() + threads * 4 - 1) / (threads * 4);
      const std::size_t tiles = std::max<std::size_t>(2, (each + isa_.max_rows - 1) / isa_.max_rows);
      job.block_rows = std::min(job.block_rows, tiles * isa_.max_rows);
    }
    job.blocks = (job.rows() + job.block_rows - 1) / job.block_rows;
    while (job.blocks > Claims::kMost) {
      job.block_rows *= 2;
      job.blocks = (job.rows() + job.block_rows - 1) / job.block_rows;
    }
    Pool::shared().run(threads - 1, GroupJob::task, &job);
    if (job.failed.load(std::memory_order_relaxed)) throw std::bad_alloc();
  };
  if (threads_ == 1 || busy == std::numeric_limits<unsigned>::max()) return run();
  Pool::CallerScope caller(Pool::shared());
  const unsigned free = caller.free_threads(threads_, busy);
  if (free > 1 && !planner_->always_alone(work)) {
    const bool awake = caller.follows_closely();
    const Plan plan = planner_->plan(work, free, awake);
    const bool wakes = awake || caller.worth_waking(plan.wake_within_us);
    if (plan.strategy == Strategy::kRowBlock && plan.threads > 1 && wakes) threads = plan.threads;
  }
  run();
}

}  // namespace fused_mlp
