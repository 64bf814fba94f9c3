// SPDX-License-Identifier: Apache-2.0
// The resources of one batch in flight: a stream, buffers in page-locked and in device memory, and a
// graph per batch size. One thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/plan.hpp"

namespace fused_mlp::cuda {

// Signals that a stream reached a point: set by a driver thread, awaited by a sleeping one.
class Arrival {
 public:
  void expect() {
    const std::lock_guard lock(mutex_);
    told_ = false;
  }
  bool wait_for(std::chrono::nanoseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [&] { return told_; });
  }
  // As cuLaunchHostFunc wants it.
  static void tell(void* arrival) {
    auto& self = *static_cast<Arrival*>(arrival);
    const std::lock_guard lock(self.mutex_);  // until it was notified: the other thread may destroy it then
    self.told_ = true;
    self.changed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool told_ = false;
};

// The buffers of a batch in flight: x and y in page-locked memory of the host, x, y and what lies between
// launches on the device.
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
