// Chooses how to run a batch: strategy, threads and rows per block, from a small cost model. Pure arithmetic
// on the model's shape; the constants were measured (docs/cpu-kernel.md).
#pragma once

#include <cstddef>

#include "isa/isa.hpp"
#include "model/program.hpp"

namespace fused_mlp {

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
};

class Planner {
 public:
  Planner(const Program& program, std::size_t stages, const Isa& isa, unsigned threads);
  Plan plan(std::size_t rows) const;
  Plan plan_alone(std::size_t rows) const;  // on one thread

 private:
  unsigned threads_;
  std::size_t max_block_rows_;
  // The smallest batches that are faster with threads: split by columns, and by rows.
  std::size_t by_columns_from_;
  std::size_t by_rows_from_;
};

}  // namespace fused_mlp
