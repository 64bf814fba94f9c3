// SPDX-License-Identifier: Apache-2.0
// A batch that one thread took to run. Reused, so that its vectors keep their capacity.
#pragma once

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "engine/schedule/lane.hpp"

namespace fused_mlp {

struct TakenBatch {
  struct Dropped {
    Ref<Ticket> ticket;
    Status status;
  };
  std::shared_ptr<Lane> lane;
  std::vector<Ref<Ticket>> runnable;
  std::vector<Dropped> dropped;  // cancelled or expired: completed without running
  std::uint32_t rows = 0;        // of `runnable`
  Nanos taken_at = 0;
  Nanos estimate = 0;       // of what it takes
  Nanos ends_at = 0;        // about, as promised to those that wait
  Nanos spent = 0;          // what it took, by its runner
  bool from_queue = false;  // of its lane, which was charged the estimate; otherwise the loop's own
  bool on_core = false;     // counted in Scheduler::on_cores_
  Release release = Release::idle;

  std::size_t tickets() const noexcept { return runnable.size() + dropped.size(); }
  // For one ticket more of each kind, so that adding it cannot fail. False: there is no memory.
  bool make_room() noexcept { return make_room(runnable, 1) && make_room(dropped, 1); }
  bool make_room_to_drop(std::size_t count = 1) noexcept { return make_room(dropped, count); }

 private:
  template <class T>
  static bool make_room(std::vector<T>& list, std::size_t count) noexcept {
    if (list.size() + count <= list.capacity()) return true;
    try {
      list.reserve(std::max<std::size_t>(16, 2 * list.size() + count));
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
};

}  // namespace fused_mlp
