#include "cuda/launch_context.hpp"

#include <algorithm>
#include <cstring>

#include "threads/spin.hpp"

namespace fused_mlp::cuda {

namespace {

using Clock = std::chrono::steady_clock;

// Batches up to here may run in the host's memory, if the bus carries no more than that for them: about 5 us
// of PCIe 4, which two asynchronous copies cost in latency alone.
constexpr std::size_t kMappedRows = 64;
constexpr std::size_t kMappedBytes = 128 * 1024;
// A batch runs in the smallest graph that holds it; rows beyond the batch hold what an earlier one left.
// Larger batches are launched directly: then launching takes less time than computing.
constexpr std::size_t kGraphRows[] = {16, 32, 64, 128, 256, 384, 512, 640, 768, 896, 1024};
constexpr std::size_t kLargestGraph = 1024;
// Parts of larger batches: as many rows as this holds, so that a wide model does not fill the GPU with
// buffers.
constexpr std::size_t kPartBytes = 8 << 20;
constexpr std::size_t kMostPartRows = 8192;

std::size_t capacity_of(const Plan& plan) {
  const std::size_t row_bytes = (plan.in_features + plan.out_features) * sizeof(float);
  return std::clamp(kPartBytes / row_bytes / kLargestGraph * kLargestGraph, kLargestGraph, kMostPartRows);
}

}  // namespace

LaunchContext::LaunchContext(const Device& device, const LoadedPlan& plan)
    : driver_(device.driver()),
      plan_(plan),
      capacity_(capacity_of(plan.plan())),
      host_x_(driver_, plan.x_bytes(capacity_)),
      host_y_(driver_, plan.y_bytes(capacity_)),
      stream_(make_stream(driver_)),
      done_(make_event(driver_, kEventBlockingSync | kEventDisableTiming)) {
  std::memset(host_x_.host(), 0, plan.x_bytes(capacity_));
  const auto reserve = [&](std::size_t bytes) {
    memory_.push_back(allocate(driver_, bytes));
    device_bytes_ += bytes;
    return memory_.back().get();
  };
  x_ = reserve(plan.x_bytes(capacity_));
  y_ = reserve(plan.y_bytes(capacity_));
  for (const std::size_t row_bytes : plan.plan().scratch_row_bytes) {
    scratch_.push_back(reserve(std::max<std::size_t>(1, row_bytes * capacity_)));
  }
  make_graphs(device);
  // The driver may load code and reserve local memory with a kernel's first launch: not in a request. Its
  // results are not read.
  StreamSink stream(driver_, stream_.get());
  enqueue(stream, 1, false);
  check(driver_.stream_synchronize(stream_.get()), "run on the GPU for the first time");
}

bool LaunchContext::is_mapped(std::size_t rows) const noexcept {
  return rows <= kMappedRows && plan_.traffic(rows) <= kMappedBytes;
}

void LaunchContext::make_graphs(const Device& device) {
  for (const std::size_t rows : kGraphRows) {
    const bool mapped = is_mapped(rows);
    if (mapped && plan_.plan().launches.size() == 1)
      continue;  // as cheap without a graph, and for exactly its rows
    GraphSink graph(device);
    enqueue(graph, rows, mapped);
    graphs_.push_back({rows, graph.instantiate()});
    check(driver_.graph_upload(graphs_.back().graph.get(), stream_.get()), "upload a graph");
  }
}

void LaunchContext::enqueue(WorkSink& sink, std::size_t rows, bool mapped) const {
  if (!mapped) sink.copy_in(x_, host_x_.host(), plan_.x_bytes(rows));
  plan_.enqueue(sink, {mapped ? host_x_.device() : x_, mapped ? host_y_.device() : y_, scratch_},
                static_cast<std::uint32_t>(rows));
  if (!mapped) sink.copy_out(host_y_.host(), y_, plan_.y_bytes(rows));
}

const LaunchContext::Prepared* LaunchContext::graph_for(std::size_t rows) const noexcept {
  // Few enough for a linear search. Direct ones come first, so a smaller batch than the first graph has none.
  if (is_mapped(rows) && plan_.plan().launches.size() == 1) return nullptr;
  const auto found =
      std::find_if(graphs_.begin(), graphs_.end(), [&](const Prepared& g) { return g.rows >= rows; });
  return found == graphs_.end() ? nullptr : &*found;
}

void LaunchContext::start(const float* x, std::size_t rows) {
  std::memcpy(host_x_.host(), x, plan_.x_bytes(rows));
  rows_ = rows;
  if (const Prepared* const prepared = graph_for(rows)) {
    check(driver_.graph_launch(prepared->graph.get(), stream_.get()), "launch a graph");
  } else {
    StreamSink stream(driver_, stream_.get());
    enqueue(stream, rows, is_mapped(rows));
  }
}

void LaunchContext::finish(float* y, std::chrono::nanoseconds spin) {
  CUresult state = driver_.stream_query(stream_.get());
  if (state == kNotReady) {
    const Clock::time_point until = Clock::now() + spin;
    do {
      pause_cpu();
      state = driver_.stream_query(stream_.get());
    } while (state == kNotReady && Clock::now() < until);
  }
  if (state == kNotReady) {
    check(driver_.event_record(done_.get(), stream_.get()), "wait for the GPU");
    state = driver_.event_synchronize(done_.get());
  }
  check(state, "run on the GPU");
  std::memcpy(y, host_y_.host(), plan_.y_bytes(rows_));
  rows_ = 0;
}

CUresult LaunchContext::abandon() noexcept {
  rows_ = 0;
  return driver_.stream_synchronize(stream_.get());
}

}  // namespace fused_mlp::cuda
