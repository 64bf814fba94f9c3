// SPDX-License-Identifier: Apache-2.0
#include "cuda/batch_memory.hpp"

#include <algorithm>
#include <cstring>

namespace fused_mlp::cuda {

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

}  // namespace fused_mlp::cuda
