// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "front/methods/bridge.hpp"
#include "front/methods/prediction.hpp"

namespace fused_mlp::front {
namespace {

// A version that requests still wait for is asked for again after this long.
constexpr int64_t kAskAgain = 1'000'000'000;

}  // namespace

void LoadQueue::add(Prediction& prediction, const RouteEntry& entry) {
  Wait& wait = waits_[{entry.model, entry.version}];
  if (wait.asked_ns == 0) ask(entry, wait);
  wait.predictions.push_back(&prediction);  // last: if anything throws, it does not wait
}

void LoadQueue::ask(const RouteEntry& entry, Wait& wait) {
  wait.asked_ns = loop_.now();
  // Python knows of it once the routes say that it is loading.
  if (!entry.loading) bridge_.request_load(entry.model, entry.version);
}

void LoadQueue::remove(const Prediction& prediction) noexcept {
  for (auto& [key, wait] : waits_) {
    if (std::erase(wait.predictions, &prediction) != 0) return;
  }
}

// One look per version, however many wait for it; the others stay where they are.
void LoadQueue::resume() {
  if (waits_.empty()) return;
  // Asked once: another time might replace, and free, what this one gave.
  const LoopRoutes::Table& current = routes_.current();
  const std::shared_ptr<const RouteTable> table = current.routes;
  const uint64_t generation = current.generation;
  const bool changed = std::exchange(generation_, generation) != generation;
  const int64_t now = loop_.now();
  std::vector<Prediction*> resumed;
  for (auto each = waits_.begin(); each != waits_.end();) {
    auto& [key, wait] = *each;
    if (!changed && !wait.predictions.empty() && now - wait.asked_ns < kAskAgain) {
      ++each;
      continue;
    }
    const RouteEntry* const entry = table->unloaded(key.first, key.second);
    if (entry != nullptr && !wait.predictions.empty()) {
      // It may have been loaded and unloaded again while this loop was busy.
      if (now - wait.asked_ns >= kAskAgain) ask(*entry, wait);
      ++each;
      continue;
    }
    resumed.insert(resumed.end(), wait.predictions.begin(), wait.predictions.end());
    each = waits_.erase(each);
  }
  for (Prediction* prediction : resumed) {
    if (prediction->waits()) prediction->proceed();  // not if the end of another took its call along
  }
}

}  // namespace fused_mlp::front
