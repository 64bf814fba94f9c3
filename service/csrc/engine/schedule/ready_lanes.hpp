// SPDX-License-Identifier: Apache-2.0
// The choice: lanes that have queued tickets, in the order in which they are served. The one whose model has
// had the least time for its weight goes first; among those in the same millisecond, the one with the nearest
// deadline; among equals, the one that has waited longest for a turn. Guarded by the scheduler's mutex. Every
// change and every choice costs the logarithm of the number of lanes.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <set>

#include "engine/clock.hpp"

namespace fused_mlp {

struct Lane;

// Where a lane is served, relative to others.
struct Rank {
  Nanos share = 0;  // virtual time in milliseconds; of a lane that waits for batch mates: until when
  Nanos due = 0;
  Nanos virtual_ns = 0;
  std::uint64_t turn = 0;  // when it was last served, as a number
  Lane* lane = nullptr;
  auto operator<=>(const Rank&) const = default;
};

// A lane's membership of one order. Its node is allocated once: moving in and out cannot fail.
class RankedPlace {
 public:
  using Order = std::set<Rank>;
  bool in() const noexcept { return in_; }
  const Rank& rank() const noexcept { return *at_; }
  void allocate() {
    if (in_ || node_) return;
    Order made;
    made.emplace();
    node_ = made.extract(made.begin());
  }
  void enter(Order& order, const Rank& rank) noexcept {
    if (in_) leave(order);
    node_.value() = rank;
    at_ = order.insert(std::move(node_)).position;
    in_ = true;
  }
  void leave(Order& order) noexcept {
    if (!in_) return;
    node_ = order.extract(at_);
    in_ = false;
  }

 private:
  Order::node_type node_;  // while it is in no order
  Order::iterator at_;
  bool in_ = false;
};

class ReadyLanes {
 public:
  // Lanes whose model's virtual time is in the same of these spans have had the same share.
  static constexpr Nanos kSameShare = 1'000'000;

  bool empty() const noexcept { return order_.empty() && waiting_.empty(); }
  // Whether an event loop may find something here. On any thread, without the mutex.
  bool has_short() const noexcept { return short_count_.load(std::memory_order_relaxed) != 0; }

  // The first ticket of a lane was queued. Throws std::bad_alloc, with everything as it was.
  void add(Lane& lane);
  // Its queue, its has_short_, or when it stops waiting for batch mates has changed; an empty one leaves.
  void update(Lane& lane) noexcept;
  // A batch of it was taken, which is estimated to take that long: update() with it.
  void serve(Lane& lane, Nanos estimate) noexcept;
  // To its model: the order of all its lanes changes.
  void charge(Lane& lane, Nanos time) noexcept;
  // Lanes that stop waiting for batch mates until `now` can be chosen from then on. Returns when the next one
  // does; 0: none waits.
  Nanos release(Nanos now) noexcept;
  void release_all() noexcept;
  // The part of the time that its model has, while those that have work now have work.
  double share(const Lane& lane) const noexcept;

  // The first that `allowed` lets through, of at most `most`; null if there is none.
  template <class Allowed>
  Lane* first(Allowed allowed, std::size_t most = static_cast<std::size_t>(-1)) const {
    return first_of(order_, allowed, most);
  }
  // The same among lanes that a loop can run some of. `allowed` may change and update() its lane.
  template <class Allowed>
  Lane* first_short(Allowed allowed) const {
    return first_of(short_, allowed, static_cast<std::size_t>(-1));
  }
  // Null if there is none.
  Lane* any() const noexcept {
    return !order_.empty() ? order_.begin()->lane : !waiting_.empty() ? waiting_.begin()->lane : nullptr;
  }

 private:
  using Order = RankedPlace::Order;

  template <class Allowed>
  static Lane* first_of(const Order& order, Allowed allowed, std::size_t most) {
    for (auto at = order.begin(); at != order.end() && most > 0; --most) {
      Lane* const lane = (at++)->lane;
      if (allowed(*lane)) return lane;
    }
    return nullptr;
  }
  void place(Lane& lane) noexcept;

  Order order_;                              // those that can be chosen
  Order short_;                              // of these, those that a loop may take from
  Order waiting_;                            // for batch mates: by the time at which they stop
  std::atomic<std::size_t> short_count_{0};  // and of those that wait
  Nanos virtual_now_ = 0;                    // the least virtual time of those that waited for a turn
  std::uint64_t turns_ = 0;
  double weights_ = 0;  // of the models that have queued tickets
};

}  // namespace fused_mlp
