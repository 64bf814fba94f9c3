// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/ready_lanes.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/schedule/lane.hpp"

namespace fused_mlp {

void ReadyLanes::add(Lane& lane) {
  lane.in_order.allocate();
  lane.in_short.allocate();
  lane.in_waiting.allocate();
  TimeAccount& account = *lane.account;
  account.ready.push_back(&lane);
  // Time in which it had nothing to do gives a model no claim.
  if (account.ready.size() != 1) return;
  account.virtual_ns = std::max(account.virtual_ns, virtual_now_);
  account.counted_weight = account.weight.load(std::memory_order_relaxed);
  weights_ += account.counted_weight;
}

void ReadyLanes::update(Lane& lane) noexcept {
  if (lane.queue.empty()) {
    lane.in_order.leave(order_);
    lane.in_short.leave(short_);
    lane.in_waiting.leave(waiting_);
    TimeAccount& account = *lane.account;
    std::erase(account.ready, &lane);
    if (account.ready.empty()) weights_ -= std::exchange(account.counted_weight, 0);
  } else {
    place(lane);
  }
  short_count_.store(short_.size() + waiting_.size(), std::memory_order_relaxed);
}

void ReadyLanes::place(Lane& lane) noexcept {
  if (lane.release_at != 0) {
    lane.in_order.leave(order_);
    lane.in_short.leave(short_);
    lane.in_waiting.enter(waiting_, {lane.release_at, 0, 0, 0, &lane});
    return;
  }
  lane.in_waiting.leave(waiting_);
  const Nanos used = lane.account->virtual_ns;
  const Rank rank{used / kSameShare, lane.queue.nearest_due(), used, lane.turn, &lane};
  lane.in_order.enter(order_, rank);
  if (lane.has_short) {
    lane.in_short.enter(short_, rank);
  } else {
    lane.in_short.leave(short_);
  }
}

void ReadyLanes::serve(Lane& lane, Nanos estimate) noexcept {
  // Not that of this lane: a loop also serves one that is far ahead of lanes that only workers serve.
  if (!order_.empty()) virtual_now_ = std::max(virtual_now_, order_.begin()->virtual_ns);
  lane.turn = ++turns_;
  charge(lane, estimate);
  if (!lane.in_order.in() || lane.queue.empty()) update(lane);
}

void ReadyLanes::charge(Lane& lane, Nanos time) noexcept {
  TimeAccount& account = *lane.account;
  account.charge(time);
  for (Lane* const each : account.ready) {
    if (each->in_order.in() && !each->queue.empty()) place(*each);
  }
}

Nanos ReadyLanes::release(Nanos now) noexcept {
  while (!waiting_.empty()) {
    const Rank first = *waiting_.begin();
    if (first.share > now) return first.share;
    first.lane->release_at = 0;
    update(*first.lane);
  }
  return 0;
}

double ReadyLanes::share(const Lane& lane) const noexcept {
  const TimeAccount& account = *lane.account;
  const double weight = account.weight.load(std::memory_order_relaxed);
  const double others = weights_ - account.counted_weight;
  return others > 0 ? weight / (weight + others) : 1;
}

void ReadyLanes::release_all() noexcept { release(std::numeric_limits<Nanos>::max()); }

}  // namespace fused_mlp
