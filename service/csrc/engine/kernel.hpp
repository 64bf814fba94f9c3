// What the engine runs: a kernel behind the C interface of kernels/csrc/kernel_api.h, or, in the Python
// module, a Python callable. Any number of threads may run one kernel at once.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kernel_api.h"

namespace fused_mlp {

// The arrays of one batch: 64-byte aligned, reused from batch to batch by one thread. Shared ownership,
// because a Python kernel may keep a view of them for longer than it should.
class BatchBuffer {
 public:
  // At least `floats` of room; what was in it is lost when it has to grow.
  float* reserve(std::size_t floats);
  const std::shared_ptr<float>& data() const noexcept { return data_; }

 private:
  std::shared_ptr<float> data_;
  std::size_t capacity_ = 0;
};

// What a kernel call came to. `error` is for the log: it may hold a traceback and is never sent.
struct KernelResult {
  bool failed = false;
  const char* strategy = "";  // valid as long as the kernel
  std::string error;
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  // x: (rows, in_features), y: (rows, out_features), float32, C-contiguous.
  virtual void run(const BatchBuffer& x, std::size_t rows, const BatchBuffer& y,
                   KernelResult& result) noexcept = 0;
  // Takes the GIL: left to the workers, never run on an event loop.
  virtual bool needs_python() const noexcept { return false; }
};

// A kernel behind the C interface. `owner` keeps it alive.
class CapsuleKernel final : public Kernel {
 public:
  CapsuleKernel(const fused_mlp_kernel* kernel, std::shared_ptr<void> owner)
      : kernel_(kernel), owner_(std::move(owner)) {}
  void run(const BatchBuffer& x, std::size_t rows, const BatchBuffer& y,
           KernelResult& result) noexcept override;

 private:
  const fused_mlp_kernel* kernel_;
  std::shared_ptr<void> owner_;
};

}  // namespace fused_mlp
