// SPDX-License-Identifier: Apache-2.0
// The buffers of a batch in flight: x and y in page-locked memory of the host, x, y and what lies between
// launches on the device.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/plan.hpp"

namespace fused_mlp::cuda {

class BatchMemory {
 public:
  BatchMemory(const Driver& driver, const LoadedPlan& plan, std::size_t rows);

  std::size_t rows() const noexcept { return rows_; }
  std::size_t device_bytes() const noexcept { return device_bytes_; }
  float* host_x() const noexcept { return host_x_.host(); }
  const float* host_y() const noexcept { return host_y_.host(); }
  // Adds a forward pass of the first `count` rows. `mapped`: kernels read and write the host's memory.
  void enqueue(WorkSink& sink, const LoadedPlan& plan, std::size_t count, bool mapped) const;

 private:
  const std::size_t rows_;
  std::size_t device_bytes_ = 0;
  MappedMemory host_x_, host_y_;
  std::vector<DeviceMemory> memory_;
  std::vector<CUdeviceptr> scratch_;
  CUdeviceptr x_ = 0, y_ = 0;
};

}  // namespace fused_mlp::cuda
