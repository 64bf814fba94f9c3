// SPDX-License-Identifier: Apache-2.0
// Where a forward pass goes: onto a stream, to run now, or into a graph, to run as often as it is launched.
#pragma once

#include <cstddef>

#include "cuda/device.hpp"

namespace fused_mlp::cuda {

// Work runs in the order in which it was added.
class WorkSink {
 public:
  virtual ~WorkSink() = default;
  virtual void copy_in(CUdeviceptr to, const void* from, std::size_t bytes) = 0;
  virtual void copy_out(void* to, CUdeviceptr from, std::size_t bytes) = 0;
  // Parameters are copied. `blocks` of `threads`, in one dimension. `dependent`: as in Launch, after a
  // launch.
  virtual void launch(CUfunction function, unsigned blocks, unsigned threads, unsigned shared_bytes,
                      void** parameters, bool dependent) = 0;
};

// A dependent launch is one like the others here: large batches take longer than the gaps between launches.
class StreamSink final : public WorkSink {
 public:
  StreamSink(const Driver& driver, CUstream stream) : driver_(driver), stream_(stream) {}
  void copy_in(CUdeviceptr to, const void* from, std::size_t bytes) override;
  void copy_out(void* to, CUdeviceptr from, std::size_t bytes) override;
  void launch(CUfunction function, unsigned blocks, unsigned threads, unsigned shared_bytes,
              void** parameters, bool dependent) override;

 private:
  const Driver& driver_;
  CUstream stream_;
};

// A chain of nodes. Not captured from a stream: a capture does not survive that another thread, which may be
// torch's, waits for the device.
class GraphSink final : public WorkSink {
 public:
  explicit GraphSink(const Device& device);
  void copy_in(CUdeviceptr to, const void* from, std::size_t bytes) override;
  void copy_out(void* to, CUdeviceptr from, std::size_t bytes) override;
  void launch(CUfunction function, unsigned blocks, unsigned threads, unsigned shared_bytes,
              void** parameters, bool dependent) override;
  GraphExec instantiate() const;

 private:
  void copy(CopyParameters parameters, std::size_t bytes);
  const CUgraphNode* dependencies() const noexcept { return last_ != nullptr ? &last_ : nullptr; }
  std::size_t dependency_count() const noexcept { return last_ != nullptr ? 1 : 0; }

  const Driver& driver_;
  const CUcontext context_;
  Graph graph_;
  CUgraphNode last_ = nullptr;
};

}  // namespace fused_mlp::cuda
