// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch_context.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <thread>

#include "threads/spin.hpp"

namespace fused_mlp::cuda {

namespace {

using Clock = std::chrono::steady_clock;

// Batches up to here may run in the host's memory, if the bus carries no more than that for them: about 5 us
// of PCIe 4, which two asynchronous copies cost in latency alone.
constexpr std::size_t kMappedRows = 64;
constexpr std::size_t kMappedBytes = 128 * 1024;
// A batch runs in the smallest graph that holds it; rows beyond the batch hold what an earlier one left.
constexpr std::size_t kGraphRows[] = {16, 32, 64, 128, 256, 384, 512, 640, 768, 896, 1024};
static_assert(kGraphRows[std::size(kGraphRows) - 1] == LaunchContext::kGraphRowsMost);
// Parts of larger batches, launched directly: then launching takes less time than computing. As many rows as
// this holds on the device, so that a wide model does not fill it with buffers.
constexpr std::size_t kPartBytes = 32 << 20;
constexpr std::size_t kMaxPartRows = 8192;
// How often a thread that sleeps looks for an error.
constexpr std::chrono::milliseconds kLook{10};

}  // namespace

BatchMemory::BatchMemory(const Driver& driver, const LoadedPlan& plan, std::size_t rows)
    : rows_(rows), host_x_(driver, plan.x_bytes(rows)), host_y_(driver, plan.y_bytes(rows)) {
  std::memset(host_x_.host(), 0, plan.x_bytes(rows));
  const auto reserve = [&](std::size_t bytes) {
    memory_.push_back(allocate(driver, bytes));
    device_bytes_ += bytes;
    return memory_.back().get();
  };
  x_ = reserve(plan.x_bytes(rows));
  y_ = reserve(plan.y_bytes(rows));
  for (const Scratch& each : plan.plan().scratch) {
    scratch_.push_back(reserve(std::max<std::size_t>(1, each.bytes(rows))));
  }
}

void BatchMemory::enqueue(WorkSink& sink, const LoadedPlan& plan, std::size_t count, bool mapped) const {
  if (!mapped) sink.copy_in(x_, host_x_.host(), plan.x_bytes(count));
  plan.enqueue(sink, {mapped ? host_x_.device() : x_, mapped ? host_y_.device() : y_, scratch_},
               static_cast<std::uint32_t>(count));
  if (!mapped) sink.copy_out(host_y_.host(), y_, plan.y_bytes(count));
}

std::size_t LaunchContext::part_limit(const Plan& plan) noexcept {
  std::size_t row_bytes = (plan.in_features + plan.out_features) * sizeof(float);
  for (const Scratch& each : plan.scratch) {
    if (each.max_rows > kGraphRowsMost) row_bytes += each.row_bytes;
  }
  return std::clamp(kPartBytes / row_bytes / kGraphRowsMost * kGraphRowsMost, kGraphRowsMost, kMaxPartRows);
}

LaunchContext::LaunchContext(Device& device, const LoadedPlan& plan)
    : device_(device),
      driver_(device.driver()),
      plan_(plan),
      memory_(driver_, plan, kGraphRowsMost),
      stream_(make_stream(driver_)) {
  device_bytes_ = memory_.device_bytes();
  make_graphs();
  // The driver may load code and reserve local memory with a kernel's first launch: not in a request. Its
  // results are not read.
  StreamSink stream(driver_, stream_.get());
  memory_.enqueue(stream, plan_, 1, false);
  check(driver_.stream_synchronize(stream_.get()), "run on the GPU for the first time");
}

void LaunchContext::replay_graphs() {
  for (const Prepared& each : graphs_) {
    check(driver_.graph_launch(each.graph.get(), stream_.get()), "launch a graph");
  }
  check(driver_.stream_synchronize(stream_.get()), "run a graph for the first time");
}

std::size_t LaunchContext::make_room() {
  const std::size_t rows = part_limit(plan_.plan());
  if (!large_ && !no_room_ && rows > kGraphRowsMost) {
    try {
      large_.emplace(driver_, plan_, rows);
      device_bytes_ += large_->device_bytes();
    } catch (const DriverError& error) {
      if (error.code() != kOutOfMemory) throw;
      no_room_ = true;
    }
  }
  return large_ ? rows : kGraphRowsMost;
}

bool LaunchContext::is_mapped(std::size_t rows) const noexcept {
  return rows <= kMappedRows && plan_.traffic(rows) <= kMappedBytes;
}

void LaunchContext::make_graphs() {
  for (const std::size_t rows : kGraphRows) {
    const bool mapped = is_mapped(rows);
    if (mapped && plan_.plan().launches.size() == 1)
      continue;  // as cheap without a graph, and for exactly its rows
    GraphSink graph(device_);
    memory_.enqueue(graph, plan_, rows, mapped);
    graphs_.push_back({rows, graph.instantiate()});
    check(driver_.graph_upload(graphs_.back().graph.get(), stream_.get()), "upload a graph");
  }
}

const LaunchContext::Prepared* LaunchContext::graph_for(std::size_t rows) const noexcept {
  // Few enough for a linear search. Direct ones come first, so a smaller batch than the first graph has none.
  if (is_mapped(rows) && plan_.plan().launches.size() == 1) return nullptr;
  const auto found =
      std::find_if(graphs_.begin(), graphs_.end(), [&](const Prepared& g) { return g.rows >= rows; });
  return found == graphs_.end() ? nullptr : &*found;
}

float* LaunchContext::begin(std::size_t rows) noexcept {
  used_ = rows > kGraphRowsMost ? &*large_ : &memory_;
  rows_ = rows;
  return used_->host_x();
}

void LaunchContext::start() {
  // On a device that hangs, a batch that was given up may still be under way: its end is not this one's.
  device_.refuse_if_lost();
  in_flight_ = true;
  if (const Prepared* const prepared = graph_for(rows_)) {
    check(driver_.graph_launch(prepared->graph.get(), stream_.get()), "launch a graph");
  } else {
    StreamSink stream(driver_, stream_.get());
    used_->enqueue(stream, plan_, rows_, is_mapped(rows_));
  }
}

const float* LaunchContext::finish(std::chrono::nanoseconds spin) {
  CUresult state = driver_.stream_query(stream_.get());
  if (state == kNotReady) {
    const Clock::time_point until = Clock::now() + spin;
    do {
      pause_cpu();
      state = driver_.stream_query(stream_.get());
    } while (state == kNotReady && Clock::now() < until);
  }
  if (state == kNotReady) state = wait_asleep();
  check(state, "run on the GPU");
  in_flight_ = false;
  return used_->host_y();
}

// Not cuEventSynchronize, which a device that hangs never returns from.
CUresult LaunchContext::wait_asleep() {
  done_.expect();
  check(driver_.launch_host(stream_.get(), Arrival::tell, &done_), "wait for the GPU");
  const Clock::time_point until = Clock::now() + device_.patience();
  for (;;) {
    if (done_.wait_for(kLook)) return kSuccess;
    // After an error the driver runs nothing more on the stream.
    if (const CUresult state = driver_.stream_query(stream_.get()); state != kNotReady) return state;
    if (const CUresult sticky = device_.sticky_error(); sticky != kSuccess) return sticky;
    if (Clock::now() >= until) device_.give_up();
  }
}

// Not cuStreamSynchronize, for the same reason. A device that hangs keeps the batch in flight.
void LaunchContext::abandon() {
  const Clock::time_point until = Clock::now() + device_.patience();
  CUresult state = kNotReady;
  while (!device_.hangs() && (state = driver_.stream_query(stream_.get())) == kNotReady) {
    if (Clock::now() >= until) device_.give_up();
    std::this_thread::sleep_for(kLook / 10);
  }
  if (device_.hangs()) return;
  in_flight_ = false;
  check(state, "run on the GPU");
}

}  // namespace fused_mlp::cuda
