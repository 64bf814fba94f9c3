// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/flow_table.hpp"

#include <algorithm>
#include <utility>

namespace fused_mlp {

namespace {
constexpr std::size_t kKept = 1024;  // slots of an empty table; a larger one is freed
}

Flow& FlowTable::add(std::uint64_t key) {
  if (2 * (size_ + 1) > slots_.size()) grow();
  if (free_.empty()) {
    free_.reserve(flows_.size() + 1);
    free_.push_back(&flows_.emplace_back());
  }
  Flow& flow = *free_.back();
  free_.pop_back();
  flow = Flow{key};
  put(flow);
  ++size_;
  return flow;
}

void FlowTable::put(Flow& flow) noexcept {
  std::size_t slot = slot_of(flow.key);
  while (slots_[slot] != nullptr) slot = after(slot);
  slots_[slot] = &flow;
}

void FlowTable::grow() {
  std::vector<Flow*> larger(std::max<std::size_t>(16, 2 * slots_.size()));
  slots_.swap(larger);
  for (Flow* const flow : larger) {
    if (flow != nullptr) put(*flow);
  }
}

void FlowTable::remove(const Flow& flow) noexcept {
  std::size_t hole = slot_of(flow.key);
  while (slots_[hole] != &flow) hole = after(hole);
  free_.push_back(std::exchange(slots_[hole], nullptr));
  // Flows behind it, up to a free slot, may have been placed there because of it.
  for (std::size_t slot = after(hole); slots_[slot] != nullptr; slot = after(slot)) {
    put(*std::exchange(slots_[slot], nullptr));
  }
  if (--size_ == 0 && slots_.size() > kKept) *this = FlowTable();
}

}  // namespace fused_mlp
