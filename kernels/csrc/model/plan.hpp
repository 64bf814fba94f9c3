// SPDX-License-Identifier: Apache-2.0
// Chooses how to run a batch: strategy, threads and rows per block, from a small cost model. Pure arithmetic
// on the model's shape and on the cost of waking a helper; the constants were measured
// (docs/internals/cpu-kernel.md).
#pragma once

#include <cstddef>
#include <vector>

#include "isa/isa.hpp"
#include "model/program.hpp"
#include "threads/wake_cost.hpp"

namespace fused_mlp {

class CostModel;

enum class Strategy : unsigned char {
  kGemv,          // few rows: layer by layer, each layer's columns split between the threads
  kLayerByLayer,  // the same for more rows, if the weights do not fit in the caches
  kRowBlock,      // each thread computes all layers for a block of rows; no barrier between layers
};

const char* name_of(Strategy strategy);

struct Plan {
  Strategy strategy;
  unsigned threads;
  std::size_t block_rows;  // for kRowBlock
  double wake_within_us =
      0;  // of several threads, with helpers that sleep: if waking takes longer, one is better
};

// Columns are split in multiples of so many panels: a tile of few rows computes four of them at once.
constexpr std::size_t column_unit(std::size_t rows) { return rows <= 3 ? 4 : 1; }

class Planner {
 public:
  // `splits_columns`: whether a layer's columns may be split between threads.
  Planner(const Program& program, std::size_t stages, const Isa& isa, unsigned threads, const WakeCost* wake,
          bool splits_columns = true);
  // With at most so many threads. `awake`: helpers still spin after the last call, and cost little to wake.
  Plan plan(std::size_t rows, unsigned threads, bool awake) const;
  Plan plan_alone(std::size_t rows) const;  // on one thread
  bool always_alone(std::size_t rows) const { return find(awake_, rows).threads == 1; }

 private:
  // How batches of that many rows and more are split.
  struct Split {
    std::size_t from_rows;
    unsigned threads;
    bool by_rows;
    double wake_within_us = 0;  // see Plan
  };
  using Splits = std::vector<Split>;  // the first is for one row

  // How the threads of a call may share its work.
  struct Ways {
    bool columns;
    bool rows;
  };

  static Splits search(const CostModel& cost, Ways ways, unsigned threads, const WakeCost& wake, bool awake);
  static const Split& find(const Splits& splits, std::size_t rows);

  std::size_t tile_rows_;
  std::size_t max_block_rows_;
  Splits awake_;
  Splits asleep_;
};

}  // namespace fused_mlp
