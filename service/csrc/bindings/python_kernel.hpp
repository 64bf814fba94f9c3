// SPDX-License-Identifier: Apache-2.0
// A kernel implemented by a Python callable `run(x, y) -> strategy`, called with the GIL once per batch.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "bindings/python_ref.hpp"
#include "engine/kernel.hpp"

namespace fused_mlp {

class PythonKernel final : public Kernel {
 public:
  PythonKernel(std::shared_ptr<PyObject> callable, std::size_t in_features, std::size_t out_features)
      : callable_(std::move(callable)), in_features_(in_features), out_features_(out_features) {}
  void run(const BatchBuffer& x, std::size_t first, std::size_t rows, const BatchBuffer& y,
           KernelResult& result) noexcept override;
  bool needs_worker() const noexcept override { return true; }

 private:
  std::shared_ptr<PyObject> callable_;
  std::size_t in_features_;
  std::size_t out_features_;
  std::set<std::string> strategies_;  // all names returned so far, which results point to; guarded by the GIL
};

}  // namespace fused_mlp
