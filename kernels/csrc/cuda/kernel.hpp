// SPDX-License-Identifier: Apache-2.0
// A model on a GPU behind the C interface of kernel_api.h: a loaded plan and a pool of launch contexts, which
// is what makes it re-entrant. A batch costs no Python and no GIL; the calling thread waits for the device.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/launch_context.hpp"
#include "kernel_api.h"

namespace fused_mlp::cuda {

class CudaKernel {
 public:
  // `contexts`: how many batches may be in flight.
  CudaKernel(std::shared_ptr<Device> device, Plan plan, unsigned contexts);
  ~CudaKernel();
  CudaKernel(const CudaKernel&) = delete;
  CudaKernel& operator=(const CudaKernel&) = delete;

  // x: (rows, in_features), y: (rows, out_features), in host memory, C-contiguous, any alignment. `busy`: as
  // in kernel_api.h. Throws DriverError; then nothing of the batch is in flight, and the next batch may
  // well succeed.
  void run(const float* x, std::size_t rows, float* y, unsigned busy = 0);

  // The same in steps, as in kernel_api.h. begin: null if no context is free, for more rows than a graph has,
  // or if the device is lost. start and finish throw DriverError.
  LaunchContext* begin(std::size_t rows) noexcept;
  void start(LaunchContext& batch);
  const float* finish(LaunchContext& batch, unsigned busy);
  void end(LaunchContext& batch) noexcept;

  // Before any batch: every graph of every context once. Throws DriverError.
  void replay_graphs();

  Device& device() const noexcept { return *device_; }
  const Plan& plan() const noexcept { return loaded_->plan(); }
  const char* label() const noexcept { return label_; }  // with static lifetime
  // Bytes of its buffers; weights are the caller's.
  std::size_t device_bytes() const noexcept;
  const fused_mlp_kernel* api() const noexcept { return &api_; }

 private:
  class Borrowed;

  void run_parts(LaunchContext& first, LaunchContext* second, const float* x, std::size_t rows, float* y,
                 std::chrono::nanoseconds spin);
  LaunchContext* borrow(bool may_wait);
  // Does it in the device's context. If that fails, learns whether the device is broken.
  template <class Work>
  auto on_device(Work work) const;
  std::chrono::nanoseconds spin_beside(unsigned busy) const noexcept;

  std::shared_ptr<Device> device_;
  std::unique_ptr<LoadedPlan> loaded_;
  std::vector<std::unique_ptr<LaunchContext>> contexts_;
  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<LaunchContext*> free_;  // the most recently used one last: it goes first, its buffers are warm
  const char* label_;
  fused_mlp_kernel api_;
};

}  // namespace fused_mlp::cuda
