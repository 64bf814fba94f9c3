// SPDX-License-Identifier: Apache-2.0
// A compiled MLP: its program, a planner, and the C interface of kernel_api.h. Immutable after
// construction; any number of threads may call run() at once.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "isa/isa.hpp"
#include "kernel_api.h"
#include "model/plan.hpp"
#include "model/program.hpp"
#include "model/scratch.hpp"
#include "model/split.hpp"

namespace fused_mlp {

class MlpKernel {
 public:
  // `wake`: what waking a helper costs; measured if not given.
  MlpKernel(const ProgramSource& program, unsigned threads, const char* isa, const WakeCost* wake = nullptr);
  MlpKernel(const MlpKernel&) = delete;
  MlpKernel& operator=(const MlpKernel&) = delete;

  // x: (rows, in_features), y: (rows, out_features), C-contiguous, any alignment. Leaves one core free for
  // each of `busy` other threads of the process.
  void run(const float* x, std::size_t rows, float* y, unsigned busy = 0) const;
  // As run(), for groups of rows with the same words in common: see fused_mlp_kernel.
  void run_groups(std::span<const fused_mlp_words> shared, std::span<const fused_mlp_group> groups, float* y,
                  unsigned busy = 0) const;
  // The strategy of this thread's last run() if it had so many rows; otherwise the planned one.
  const char* strategy(std::size_t rows) const;
  // The strategy for so many rows while helpers are awake and all cores are free.
  const char* planned_strategy(std::size_t rows) const {
    return name_of(planner_->plan(rows, threads_, true).strategy);
  }

  std::size_t in_features() const { return api_.in_features; }
  std::size_t out_features() const { return api_.out_features; }
  unsigned threads() const { return threads_; }
  const char* isa() const { return isa_.name; }
  std::size_t memory_bytes() const { return program_.memory_bytes(); }
  // Whether the ids in these rows are rows of their tables. run() does not check them.
  bool ids_fit(const float* x, std::size_t rows) const { return program_.ids_fit(x, rows); }
  const fused_mlp_kernel* api() const { return &api_; }

 private:
  // The arrays of one call, or of one block of its rows.
  struct Frame {
    std::size_t rows;
    std::size_t x_stride;
    std::size_t first_copy;  // in the scratch space: where copies of quantized rows begin
    Scratch scratch;
    float* bases[3];  // x, which nothing writes to, y, and the scratch buffers, one after the other

    // `copies`: of the buffer for quantized rows, where threads have one each.
    Frame(const MlpKernel& kernel, const float* x, std::size_t rows, float* y, unsigned copies = 1);
    // With rows of x of its own, to be filled.
    Frame(const MlpKernel& kernel, std::size_t rows, float* y);

    float* at(const Location& location) const {
      return bases[location.base] + rows * location.per_row + location.column;
    }
    // The same for quantized rows, in a thread's own copy.
    float* at(const Location& location, unsigned copy) const {
      return copy == 0 ? at(location)
                       : bases[location.base] + first_copy + (copy - 1) * rows * location.stride;
    }
    std::size_t stride(const Location& location) const {
      return location.base == Region::kInput ? x_stride : location.stride;
    }
  };
  // Operations that run without a barrier in between: one product, or several operations row by row.
  struct Stage {
    std::size_t first;
    std::size_t last;
  };
  static constexpr std::size_t kMaxStages = 256;  // with more, columns are not split between threads
  struct RowBlockJob;
  struct StageJob;
  struct GroupJob;  // in groups.cpp

  void note_run(std::size_t rows, Strategy strategy) const noexcept;  // for strategy()

  // In strategies.cpp.
  void run_planned(const Plan& plan, const float* x, std::size_t rows, float* y) const;
  std::size_t x_stride(std::size_t rows) const;
  void run_product(std::size_t op, const Frame& frame, std::size_t first, std::size_t last,
                   unsigned copy = 0) const;
  void run_product_recorded(std::size_t op, const LayerCall& call) const;
  void run_rows(std::size_t op, const Frame& frame, std::size_t row, std::size_t rows,
                unsigned copy = 0) const;
  void run_rows(const Op& op, const RowCall& call) const;
  void run_lookups(std::size_t op, std::span<const PlacedLookup> lookups, const Frame& frame, std::size_t row,
                   std::size_t rows) const;
  const Split* split_of(std::span<const fused_mlp_words> shared) const;  // null: there are too many
  void run_rows_recorded(std::size_t op, const RowCall& call) const;
  void run_block(const float* x, std::size_t rows, float* y) const;
  void run_row_blocks(const Plan& plan, const float* x, std::size_t rows, float* y) const;
  void run_stages(const Plan& plan, const float* x, std::size_t rows, float* y) const;

  const Isa& isa_;
  unsigned threads_;
  Program program_;
  std::vector<Stage> stages_;
  std::unique_ptr<Planner> planner_;
  fused_mlp_kernel api_;
  FloatBuffer negative_zeros_;  // as wide as the widest product: added to them, a sum keeps its bits
  static constexpr std::size_t kMaxSplits = 16;
  mutable std::mutex splitting_;  // guards what is not made yet
  mutable std::array<std::unique_ptr<const Split>, kMaxSplits> splits_;
  mutable std::atomic<std::size_t> splits_made_{0};
};

}  // namespace fused_mlp
