// SPDX-License-Identifier: Apache-2.0
// Graphs, recorded from a stream or made of nodes.
#include "work.hpp"

using namespace fake_cuda;
using fused_mlp::cuda::EdgeData;
using fused_mlp::cuda::kProgrammaticEdge;
using fused_mlp::cuda::kProgrammaticPort;

namespace {

// Only chains: a node that does not depend on the one before it might run beside it.
int add_node(Graph* graph, Work** node, Work* const* dependencies, std::size_t count, Work work) {
  const bool chained = count == 1 && !graph->nodes.empty() && dependencies[0] == graph->nodes.back().get();
  if ((!chained && count != 0) || !work || graph->loose) return kInvalidValue;
  graph->loose = !chained && !graph->nodes.empty();
  graph->nodes.push_back(std::make_unique<Work>(std::move(work)));
  *node = graph->nodes.back().get();
  return kSuccess;
}

}  // namespace

EXPORT int cuStreamBeginCapture_v2(Stream* stream, int mode) {
  ENTER(enter("cuStreamBeginCapture_v2"));
  ENTER(check_stream(stream));
  if (mode != 1 || stream->capturing()) return kInvalidValue;  // only thread-local captures let others go on
  stream->begin_capture();
  const std::lock_guard lock(fake().mutex);
  fake().captures[stream] = std::this_thread::get_id();
  return kSuccess;
}

EXPORT int cuStreamEndCapture(Stream* stream, Graph** graph) {
  ENTER(enter("cuStreamEndCapture"));
  ENTER(check_stream(stream));
  {
    const std::lock_guard lock(fake().mutex);
    const auto found = fake().captures.find(stream);
    if (found == fake().captures.end() || found->second != std::this_thread::get_id()) return kInvalidValue;
    fake().captures.erase(found);
  }
  auto work = stream->end_capture();
  if (!work) return kCaptureInvalidated;
  auto made = std::make_unique<Graph>(current_context());
  for (Work& each : *work) made->nodes.push_back(std::make_unique<Work>(std::move(each)));
  *graph = fake().graphs.add(std::move(made));
  return kSuccess;
}

EXPORT int cuGraphCreate(Graph** graph, unsigned flags) {
  ENTER(enter("cuGraphCreate"));
  if (flags != 0) return kInvalidValue;
  *graph = fake().graphs.add(std::make_unique<Graph>(current_context()));
  return kSuccess;
}

EXPORT int cuGraphAddMemcpyNode(Work** node, Graph* graph, Work* const* dependencies, std::size_t count,
                                const CopyParameters* copied, Context* context) {
  ENTER(enter("cuGraphAddMemcpyNode"));
  ENTER(check_handle(fake().graphs, graph));
  if (context != current_context()) return kInvalidContext;
  const bool in = copied->from_type == 1 && copied->to_type == 2;
  const bool out = copied->from_type == 2 && copied->to_type == 1;
  if ((!in && !out) || copied->height != 1 || copied->depth != 1) return kInvalidValue;
  if (copied->from_pitch < copied->bytes || copied->to_pitch < copied->bytes) return kInvalidValue;
  return add_node(graph, node, dependencies, count,
                  in ? copy(copied->to_device, copied->from_host, copied->bytes, true)
                     : copy(copied->from_device, copied->to_host, copied->bytes, false));
}

EXPORT int cuGraphAddKernelNode_v2(Work** node, Graph* graph, Work* const* dependencies, std::size_t count,
                                   const KernelNodeParameters* launched) {
  ENTER(enter("cuGraphAddKernelNode_v2"));
  ENTER(check_handle(fake().graphs, graph));
  Work work;
  ENTER(prepare(reinterpret_cast<Function*>(launched->function), *launched, work));
  return add_node(graph, node, dependencies, count, std::move(work));
}

// Launches run one after the other here, whatever the edges allow.
EXPORT int cuGraphAddDependencies_v2(Graph* graph, Work* const* from, Work* const* to, const EdgeData* edge,
                                     std::size_t count) {
  ENTER(enter("cuGraphAddDependencies_v2"));
  ENTER(check_handle(fake().graphs, graph));
  const auto& nodes = graph->nodes;
  if (!graph->loose || count != 1 || *from != nodes[nodes.size() - 2].get() || *to != nodes.back().get())
    return kInvalidValue;
  if (edge->from_port != kProgrammaticPort || edge->to_port != 0 || edge->type != kProgrammaticEdge)
    return kInvalidValue;
  graph->loose = false;
  return kSuccess;
}

EXPORT int cuGraphInstantiateWithFlags(GraphExec** executable, Graph* graph, unsigned long long flags) {
  ENTER(enter_unsafe("cuGraphInstantiateWithFlags"));
  ENTER(check_handle(fake().graphs, graph));
  if (flags != 0 || graph->loose) return kInvalidValue;
  auto made = std::make_unique<GraphExec>(current_context());
  for (const auto& node : graph->nodes) made->work.push_back(*node);
  *executable = fake().executables.add(std::move(made));
  return kSuccess;
}

EXPORT int cuGraphUpload(GraphExec* executable, Stream* stream) {
  ENTER(enter_unsafe("cuGraphUpload"));
  ENTER(check_stream(stream));
  return check_handle(fake().executables, executable);
}

EXPORT int cuGraphLaunch(GraphExec* executable, Stream* stream) {
  ENTER(enter("cuGraphLaunch"));
  ENTER(check_stream(stream));
  ENTER(check_handle(fake().executables, executable));
  for (const Work& work : executable->work) stream->enqueue(work);
  return kSuccess;
}

EXPORT int cuGraphExecDestroy(GraphExec* executable) {
  ENTER(enter("cuGraphExecDestroy", Needs::kContext));
  ENTER(check_handle(fake().executables, executable));
  fake().executables.take(executable);
  return kSuccess;
}

EXPORT int cuGraphDestroy(Graph* graph) {
  ENTER(enter("cuGraphDestroy", Needs::kContext));
  ENTER(check_handle(fake().graphs, graph));
  fake().graphs.take(graph);
  return kSuccess;
}
