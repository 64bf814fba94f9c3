// What one batch in flight needs for itself: a stream, buffers in page-locked and in device memory, and a
// graph per batch size. One thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "cuda/plan.hpp"

namespace fused_mlp::cuda {

class LaunchContext {
 public:
  // Allocates everything a batch will need and makes the graphs: serving allocates nothing.
  LaunchContext(const Device& device, const LoadedPlan& plan);

  // The most rows that can be in flight here.
  std::size_t capacity() const noexcept { return capacity_; }
  std::size_t device_bytes() const noexcept { return device_bytes_; }

  // Copies x and starts a forward of up to capacity() rows.
  void start(const float* x, std::size_t rows);
  // Waits for it, spinning for at most `spin`, and copies its result.
  void finish(float* y, std::chrono::nanoseconds spin);
  bool in_flight() const noexcept { return rows_ != 0; }
  // After a failure: waits for what was started and forgets it. Returns the driver's verdict on the stream.
  CUresult abandon() noexcept;

 private:
  struct Prepared {
    std::size_t rows;
    GraphExec graph;
  };

  // True if kernels read and write the host's memory: what crosses the bus is so little that copies would
  // take longer.
  bool is_mapped(std::size_t rows) const noexcept;
  void make_graphs(const Device& device);
  void enqueue(WorkSink& sink, std::size_t rows, bool mapped) const;
  const Prepared* graph_for(std::size_t rows) const noexcept;

  const Driver& driver_;
  const LoadedPlan& plan_;
  const std::size_t capacity_;
  std::size_t device_bytes_ = 0;
  std::size_t rows_ = 0;  // in flight
  MappedMemory host_x_, host_y_;
  std::vector<DeviceMemory> memory_;
  std::vector<CUdeviceptr> scratch_;
  CUdeviceptr x_ = 0, y_ = 0;
  Stream stream_;
  Event done_;
  std::vector<Prepared> graphs_;  // by rows. Before the stream and the buffers in destruction: they hold both
};

}  // namespace fused_mlp::cuda
