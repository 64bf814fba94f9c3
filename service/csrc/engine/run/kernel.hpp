// SPDX-License-Identifier: Apache-2.0
// A kernel as the engine runs it: behind the C interface of kernels/csrc/kernel_api.h, or (in the Python
// module) a Python callable. Any number of threads may run one kernel at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include "kernel_api.h"

namespace fused_mlp {

// An array of a batch, 64-byte aligned, reused by one thread for all its batches. Ownership is shared because
// a Python kernel may keep a view of it after it returned.
class BatchBuffer {
 public:
  // Grows to at least `floats`. Growing discards the contents.
  float* reserve(std::size_t floats);
  const std::shared_ptr<float>& data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return capacity_ * sizeof(float); }
  // Gives the memory back to the system, once no view of it is left.
  void release() noexcept {
    data_.reset();
    capacity_ = 0;
  }

 private:
  std::shared_ptr<float> data_;
  std::size_t capacity_ = 0;
};

// The result of a kernel call. `error` is for the log only: it may contain a traceback.
struct KernelResult {
  bool failed = false;
  const char* strategy = "";  // owned by the kernel
  std::string error;

  void fail(std::string_view text) noexcept {
    failed = true;
    try {
      error = text;
    } catch (const std::bad_alloc&) {  // without its text
    }
  }
};

// A batch in memory of its kernel's, which waits for a device.
struct PlacedBatch {
  void* place = nullptr;     // the kernel's name for it; null: it has none
  float* x = nullptr;        // (rows, in_features)
  const float* y = nullptr;  // (rows, out_features), once it is finished
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  // Runs the rows [first, first + rows) of x: (>= first + rows, in_features) into the same rows of
  // y: (>= first + rows, out_features); float32, C-contiguous.
  virtual void run(const BatchBuffer& x, std::size_t first, std::size_t rows, const BatchBuffer& y,
                   KernelResult& result) noexcept = 0;
  // Whether it can run groups of rows with words in common, into y: (their rows, out_features).
  virtual bool runs_groups() const noexcept { return false; }
  virtual void run_groups(std::span<const fused_mlp_words>, std::span<const fused_mlp_group>, float*,
                          KernelResult&) noexcept {}
  // True if run() takes the GIL or waits for a device. Such kernels run on workers, never on an event loop,
  // and each batch in one call: those of Python do not promise the same bits for a row whatever rows share
  // its call, and a device is not slowed down by one large batch.
  virtual bool needs_worker() const noexcept { return false; }
  // How many calls of run() make progress at once. More would only keep workers from other lanes.
  virtual std::uint32_t max_at_once() const noexcept { return kAnyNumber; }
  static constexpr std::uint32_t kAnyNumber = std::numeric_limits<std::uint32_t>::max();
  // Whether a batch can run in steps, as kernel_api.h describes them.
  virtual bool has_steps() const noexcept { return false; }
  virtual PlacedBatch begin(std::size_t /*rows*/) noexcept { return {}; }
  virtual void start(PlacedBatch&, KernelResult&) noexcept {}
  virtual void finish(PlacedBatch&, std::size_t /*rows*/, KernelResult&) noexcept {}
  virtual void end(PlacedBatch&) noexcept {}
};

// A kernel behind the C interface. `owner` keeps it alive.
class CapsuleKernel final : public Kernel {
 public:
  CapsuleKernel(const fused_mlp_kernel* kernel, std::shared_ptr<void> owner)
      : kernel_(kernel), owner_(std::move(owner)) {}
  void run(const BatchBuffer& x, std::size_t first, std::size_t rows, const BatchBuffer& y,
           KernelResult& result) noexcept override;
  bool runs_groups() const noexcept override { return kernel_->run_groups != nullptr; }
  void run_groups(std::span<const fused_mlp_words> shared, std::span<const fused_mlp_group> groups, float* y,
                  KernelResult& result) noexcept override;
  bool needs_worker() const noexcept override { return (kernel_->flags & FUSED_MLP_KERNEL_WAITS) != 0; }
  std::uint32_t max_at_once() const noexcept override {
    return kernel_->max_at_once != 0 ? kernel_->max_at_once : kAnyNumber;
  }
  bool has_steps() const noexcept override { return kernel_->steps != nullptr; }
  PlacedBatch begin(std::size_t rows) noexcept override;
  void start(PlacedBatch& batch, KernelResult& result) noexcept override;
  void finish(PlacedBatch& batch, std::size_t rows, KernelResult& result) noexcept override;
  void end(PlacedBatch& batch) noexcept override { kernel_->steps->end(kernel_->ctx, batch.place); }

 private:
  const fused_mlp_kernel* kernel_;
  std::shared_ptr<void> owner_;
};

}  // namespace fused_mlp
