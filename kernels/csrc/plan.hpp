// How a batch is run: the strategy, the threads and the block of rows, from a small cost model.
// Pure arithmetic on the shape of the model; the constants were measured, see docs/cpu-kernel.md.
#pragma once

#include <cstddef>
#include <vector>

#include "isa.hpp"

namespace fused_mlp {

enum class Strategy : unsigned char {
  kGemv,          // few rows: layer by layer, columns shared out between the threads
  kLayerByLayer,  // the same for more rows, where weights outgrow the caches
  kRowBlock,      // each thread takes blocks of rows through all layers; no barrier between layers
};

const char* name_of(Strategy strategy);

struct Plan {
  Strategy strategy;
  unsigned threads;
  std::size_t block_rows;  // of a row block
};

class Planner {
 public:
  Planner(const std::vector<PackedLayer>& layers, const Isa& isa, unsigned threads);
  Plan plan(std::size_t rows) const;
  Plan plan_alone(std::size_t rows) const;  // on one thread, however many there are

 private:
  unsigned threads_;
  std::size_t max_block_rows_;
  // Batches of so many rows and more are worth sharing out by columns, and by rows.
  std::size_t by_columns_from_;
  std::size_t by_rows_from_;
};

}  // namespace fused_mlp
