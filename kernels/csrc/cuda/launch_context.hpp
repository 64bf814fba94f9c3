// SPDX-License-Identifier: Apache-2.0
// What one batch in flight needs for itself: a stream, buffers in page-locked and in device memory, and a
// graph per batch size. One thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

#include "cuda/arrival.hpp"
#include "cuda/batch_memory.hpp"

namespace fused_mlp::cuda {

class LaunchContext {
 public:
  // A batch of up to so many rows runs as one graph or launch, in buffers that are made at load.
  static constexpr std::size_t kGraphRowsMost = 1024;

  // Allocates what a batch of that size needs and makes the graphs: serving such allocates nothing.
  LaunchContext(Device& device, const LoadedPlan& plan);

  // Launches every graph once, as batches will: what the driver does the first time only is then done.
  // Results are not read. Nothing is in flight.
  void replay_graphs();
  // Makes buffers for parts of larger batches, if there are none, as many rows as `part_limit` says. Returns
  // how many rows can be in flight then: kGraphRowsMost if the device has no memory for more.
  std::size_t make_room();
  static std::size_t part_limit(const Plan& plan) noexcept;
  // On any thread.
  std::size_t device_bytes() const noexcept { return device_bytes_.load(std::memory_order_relaxed); }

  // Where the rows of a batch go: as many as there is room for. Nothing is in flight.
  float* begin(std::size_t rows) noexcept;
  // Starts a forward of those rows.
  void start();
  // Waits for it, spinning for at most `spin`. Returns its result, which is there until the next begin().
  const float* finish(std::chrono::nanoseconds spin);
  bool in_flight() const noexcept { return in_flight_; }
  // After a failure: waits for what was started and forgets it. Throws DriverError for what happened to that.
  void abandon();

 private:
  struct Prepared {
    std::size_t rows;
    GraphExec graph;
  };

  // True if kernels read and write the host's memory: what crosses the bus is so little that copies would
  // take longer.
  bool is_mapped(std::size_t rows) const noexcept;
  void make_graphs();
  const Prepared* graph_for(std::size_t rows) const noexcept;
  CUresult wait_asleep();

  Device& device_;
  const Driver& driver_;
  const LoadedPlan& plan_;
  std::atomic<std::size_t> device_bytes_{0};
  std::size_t rows_ = 0;  // of the batch
  bool in_flight_ = false;
  BatchMemory memory_;  // of the graphs
  std::optional<BatchMemory> large_;
  bool no_room_ = false;                // for `large_`: asked for once
  const BatchMemory* used_ = &memory_;  // by what is in flight
  Stream stream_;
  Arrival done_;
  std::vector<Prepared> graphs_;  // by rows. Before the stream and the buffers in destruction: they hold both
};

}  // namespace fused_mlp::cuda
