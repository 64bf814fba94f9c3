// A compiled MLP: packed layers, a planner, and the C interface of kernel_api.h. Immutable after
// construction; any number of threads may call run() at once.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "isa/isa.hpp"
#include "kernel_api.h"
#include "model/pack.hpp"
#include "model/plan.hpp"

namespace fused_mlp {

class MlpKernel {
 public:
  // `output` replaces the last layer's activation; if that layer is gated, it is applied after the gate.
  MlpKernel(const std::vector<LayerSource>& layers, Activation output, float output_slope, unsigned threads,
            const char* isa);
  MlpKernel(const MlpKernel&) = delete;
  MlpKernel& operator=(const MlpKernel&) = delete;

  // x: (rows, in_features), y: (rows, out_features), C-contiguous, any alignment. Leaves one core free for
  // each of `busy` other threads of the process.
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

  // In strategies.cpp.
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
  Activation finish_ = Activation::kIdentity;  // applied to y after the last layer
  float finish_slope_ = 0;
  std::size_t scratch_stride_ = 0;  // of the activations between layers, in floats
  std::unique_ptr<Planner> planner_;
  fused_mlp_kernel api_;
};

}  // namespace fused_mlp
