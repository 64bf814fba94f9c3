// SPDX-License-Identifier: Apache-2.0
#include "engine/ready_lanes.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/lane.hpp"

namespace fused_mlp {

void ReadyLanes::add(Lane& lane) {
  lane.in_order_.allocate();
  lane.in_short_.allocate();
  lane.in_waiting_.allocate();
  TimeAccount& account = *lane.account_;
  account.ready.push_back(&lane);
  // Time in which it had nothing to do gives a model no claim.
  if (account.ready.size() == 1) account.virtual_ns = std::max(account.virtual_ns, virtual_now_);
}

void ReadyLanes::update(Lane& lane) noexcept {
  if (lane.queue_.empty()) {
    lane.in_order_.leave(order_);
    lane.in_short_.leave(short_);
    lane.in_waiting_.leave(waiting_);
    std::erase(lane.account_->ready, &lane);
  } else {
    place(lane);
  }
  short_count_.store(short_.size() + waiting_.size(), std::memory_order_relaxed);
}

void ReadyLanes::place(Lane& lane) noexcept {
  if (lane.release_at_ != 0) {
    lane.in_order_.leave(order_);
    lane.in_short_.leave(short_);
    lane.in_waiting_.enter(waiting_, {lane.release_at_, 0, 0, 0, &lane});
    return;
  }
  lane.in_waiting_.leave(waiting_);
  const Nanos used = lane.account_->virtual_ns;
  const Rank rank{used / kSameShare, lane.queue_.nearest_deadline(), used, lane.turn_, &lane};
  lane.in_order_.enter(order_, rank);
  if (lane.has_short_) {
    lane.in_short_.enter(short_, rank);
  } else {
    lane.in_short_.leave(short_);
  }
}

void ReadyLanes::serve(Lane& lane, Nanos estimate) noexcept {
  // Not that of this lane: a loop also serves one that is far ahead of lanes that only workers serve.
  if (!order_.empty()) virtual_now_ = std::max(virtual_now_, order_.begin()->virtual_ns);
  lane.turn_ = ++turns_;
  charge(lane, estimate);
  if (!lane.in_order_.in() || lane.queue_.empty()) update(lane);
}

void ReadyLanes::charge(Lane& lane, Nanos time) noexcept {
  TimeAccount& account = *lane.account_;
  account.charge(time);
  for (Lane* const each : account.ready) {
    if (each->in_order_.in() && !each->queue_.empty()) place(*each);
  }
}

Nanos ReadyLanes::release(Nanos now) noexcept {
  while (!waiting_.empty()) {
    const Rank first = *waiting_.begin();
    if (first.share > now) return first.share;
    first.lane->release_at_ = 0;
    update(*first.lane);
  }
  return 0;
}

void ReadyLanes::release_all() noexcept { release(std::numeric_limits<Nanos>::max()); }

}  // namespace fused_mlp
