// SPDX-License-Identifier: Apache-2.0
// The launches of a batch, in order: kernels with their grids by rows, and where their arguments come from.
// Python decides all of it at load; this checks it, loads the machine code and enqueues launches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "cuda/work_sink.hpp"

namespace fused_mlp::cuda {

// A compiled kernel. `cubin` is tried first; `ptx`, which the driver compiles, where the GPU cannot run it.
// One may be empty.
struct KernelCode {
  std::string cubin;
  std::string ptx;
  std::string name;
  unsigned threads;       // of a block
  unsigned shared_bytes;  // dynamic
};

struct Argument {
  enum Kind { kX, kY, kScratch, kAddress, kRows, kNull };
  Kind kind;
  std::uint64_t value =
      0;  // kScratch: which buffer; kAddress: on the device, of weights, which the caller keeps alive
};

// ceil(rows / block_rows) * column_blocks blocks, in batches of min_rows to max_rows; others leave it out.
// `dependent`: the kernel waits by itself (griddepcontrol) for the launch before it, so it may begin earlier.
struct Launch {
  std::size_t kernel;
  unsigned block_rows;
  unsigned column_blocks;
  std::vector<Argument> arguments;
  std::size_t min_rows = 0;
  std::size_t max_rows = std::numeric_limits<std::size_t>::max();
  bool dependent = false;

  bool runs(std::size_t rows) const noexcept { return min_rows <= rows && rows <= max_rows; }
};

// A buffer between launches; only launches of batches up to max_rows use it.
struct Scratch {
  std::size_t row_bytes;
  std::size_t max_rows = std::numeric_limits<std::size_t>::max();

  std::size_t bytes(std::size_t rows) const noexcept { return row_bytes * std::min(rows, max_rows); }
};

struct Plan {
  std::string label;
  std::size_t in_features;
  std::size_t out_features;
  std::vector<Scratch> scratch;
  std::vector<KernelCode> kernels;
  std::vector<Launch> launches;
};

// The buffers of one forward, as addresses on the device.
struct Buffers {
  CUdeviceptr x;
  CUdeviceptr y;
  std::span<const CUdeviceptr> scratch;
};

class LoadedPlan {
 public:
  // Throws std::invalid_argument for a plan that does not fit together, DriverError if the GPU refuses it.
  LoadedPlan(const Driver& driver, Plan plan);

  const Plan& plan() const noexcept { return plan_; }
  std::size_t x_bytes(std::size_t rows) const noexcept { return rows * plan_.in_features * sizeof(float); }
  std::size_t y_bytes(std::size_t rows) const noexcept { return rows * plan_.out_features * sizeof(float); }
  // Bytes of x and y that the kernels of a batch read and write, repetitions included.
  std::size_t traffic(std::size_t rows) const noexcept;
  // Adds all launches for that many rows.
  void enqueue(WorkSink& sink, const Buffers& buffers, std::uint32_t rows) const;

 private:
  Plan plan_;
  std::vector<Module> modules_;
  std::vector<CUfunction> functions_;
};

}  // namespace fused_mlp::cuda
