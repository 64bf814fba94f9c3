// A compiled MLP: packed layers, the plan for each batch size, and the C interface of kernel_api.h.
// Immutable after construction; run() may be called by many threads at once.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "isa.hpp"
#include "kernel_api.h"
#include "pack.hpp"
#include "plan.hpp"

namespace fused_mlp {

class MlpKernel {
 public:
  // The last layer's activation is `output`, unless the layer is gated: then `output` follows its gate.
  MlpKernel(const std::vector<LayerSource>& layers, Activation output, float output_slope, unsigned threads,
            const char* isa);
  MlpKernel(const MlpKernel&) = delete;
  MlpKernel& operator=(const MlpKernel&) = delete;

  // x: (rows, in_features), y: (rows, out_features), C-contiguous, any alignment. `busy` other threads of the
  // process are left a core each.
  void run(const float* x, std::size_t rows, float* y, unsigned busy = 0) const;
  const char* strategy(std::size_t rows) const { return name_of(planner_->plan(rows).strategy); }

  std::size_t in_features() const { return api_.in_features; }
  std::size_t out_features() const { return api_.out_features; }
  unsigned threads() const { return threads_; }
  const char* isa() const { return isa_.name; }
  const fused_mlp_kernel* api() const { return &api_; }

 private:
  struct RowBlockJob;
  struct LayerJob;

  void run_planned(const Plan& plan, const float* x, std::size_t rows, float* y) const;
  void run_layer(std::size_t layer, const LayerCall& call) const;
  void run_layer_recorded(std::size_t layer, const LayerCall& call) const;
  void run_block(const float* x, std::size_t rows, float* y) const;
  void run_row_blocks(const Plan& plan, const float* x, std::size_t rows, float* y) const;
  void run_layers(const Plan& plan, const float* x, std::size_t rows, float* y) const;
  void finish_rows(float* y, std::size_t rows) const;

  const Isa& isa_;
  unsigned threads_;
  std::vector<LayerStorage> storage_;
  std::vector<PackedLayer> layers_;
  Activation finish_ = Activation::kIdentity;  // what is left to do once the last layer is written
  float finish_slope_ = 0;
  std::size_t scratch_stride_ = 0;  // of an activation row between layers
  std::unique_ptr<Planner> planner_;
  fused_mlp_kernel api_;
};

}  // namespace fused_mlp
