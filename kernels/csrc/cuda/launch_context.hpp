// What one batch in flight needs for itself: a stream, buffers in page-locked and in device memory, and a
// graph per batch size. One thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

#include "cuda/batch_memory.hpp"

namespace fused_mlp::cuda {

class LaunchContext {
 public:
  // A batch of up to so many rows runs as one graph or launch, in buffers that are made at load.
  static constexpr std::size_t kGraphRowsMost = 1024;

  // Allocates what a batch of that size needs and makes the graphs: serving such allocates nothing.
  LaunchContext(const Device& device, const LoadedPlan& plan);

  // Launches every graph once, as batches will: what the driver does the first time only is then done.
  // Results are not read. Nothing is in flight.
  void replay_graphs();
  // Makes buffers for parts of larger batches, if there are none, as many rows as `part_limit` says. Returns
  // how many rows can be in flight then: kGraphRowsMost if the device has no memory for more.
  std::size_t make_room();
  static std::size_t part_limit(const Plan& plan) noexcept;
  // On any thread.
  std::size_t device_bytes() const noexcept { return device_bytes_.load(std::memory_order_relaxed); }

  // Copies x and starts a forward of as many rows as there is room for.
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
  const Prepared* graph_for(std::size_t rows) const noexcept;

  const Driver& driver_;
  const LoadedPlan& plan_;
  std::atomic<std::size_t> device_bytes_{0};
  std::size_t rows_ = 0;  // in flight
  BatchMemory memory_;    // of the graphs
  std::optional<BatchMemory> large_;
  bool no_room_ = false;                // for `large_`: asked for once
  const BatchMemory* used_ = &memory_;  // by what is in flight
  Stream stream_;
  Event done_;
  std::vector<Prepared> graphs_;  // by rows. Before the stream and the buffers in destruction: they hold both
};

}  // namespace fused_mlp::cuda
