// SPDX-License-Identifier: Apache-2.0
#include "cuda/work_sink.hpp"

namespace fused_mlp::cuda {

void StreamSink::copy_in(CUdeviceptr to, const void* from, std::size_t bytes) {
  check(driver_.copy_in_async(to, from, bytes, stream_), "copy the input");
}

void StreamSink::copy_out(void* to, CUdeviceptr from, std::size_t bytes) {
  check(driver_.copy_out_async(to, from, bytes, stream_), "copy the output");
}

void StreamSink::launch(CUfunction function, unsigned blocks, unsigned threads, unsigned shared_bytes,
                        void** parameters, bool) {
  check(driver_.launch(function, blocks, 1, 1, threads, 1, 1, shared_bytes, stream_, parameters, nullptr),
        "launch a kernel");
}

GraphSink::GraphSink(const Device& device) : driver_(device.driver()), context_(device.context()) {
  CUgraph graph = nullptr;
  check(driver_.graph_create(&graph, 0), "make a graph");
  graph_ = {driver_, graph};
}

void GraphSink::copy_in(CUdeviceptr to, const void* from, std::size_t bytes) {
  CopyParameters parameters;
  parameters.from_type = kHostMemory;
  parameters.from_host = from;
  parameters.to_type = kDeviceMemory;
  parameters.to_device = to;
  copy(parameters, bytes);
}

void GraphSink::copy_out(void* to, CUdeviceptr from, std::size_t bytes) {
  CopyParameters parameters;
  parameters.from_type = kDeviceMemory;
  parameters.from_device = from;
  parameters.to_type = kHostMemory;
  parameters.to_host = to;
  copy(parameters, bytes);
}

void GraphSink::copy(CopyParameters parameters, std::size_t bytes) {
  parameters.bytes = parameters.from_pitch = parameters.to_pitch = bytes;
  parameters.from_height = parameters.to_height = 1;
  CUgraphNode node = nullptr;
  check(
      driver_.graph_add_copy(&node, graph_.get(), dependencies(), dependency_count(), &parameters, context_),
      "add a copy to a graph");
  last_ = node;
}

void GraphSink::launch(CUfunction function, unsigned blocks, unsigned threads, unsigned shared_bytes,
                       void** parameters, bool dependent) {
  const KernelNodeParameters node_parameters{function, blocks,       1,          1,       threads, 1,
                                             1,        shared_bytes, parameters, nullptr, nullptr, nullptr};
  CUgraphNode node = nullptr;
  check(driver_.graph_add_kernel(&node, graph_.get(), dependent ? nullptr : dependencies(),
                                 dependent ? 0 : dependency_count(), &node_parameters),
        "add a kernel to a graph");
  if (dependent) {
    const EdgeData edge{kProgrammaticPort, 0, kProgrammaticEdge, {}};
    check(driver_.graph_add_edges(graph_.get(), &last_, &node, &edge, 1), "let kernels of a graph overlap");
  }
  last_ = node;
}

GraphExec GraphSink::instantiate() const {
  CUgraphExec executable = nullptr;
  check(driver_.graph_instantiate(&executable, graph_.get(), 0), "make a graph executable");
  return {driver_, executable};
}

}  // namespace fused_mlp::cuda
