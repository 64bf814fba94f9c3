// SPDX-License-Identifier: Apache-2.0
// Admission: whether a ticket is queued, and whether it is still run when its batch is formed. Prices a
// ticket by what is promised already: the batches that run, the queued rows that go before it, and other
// models' share of the cores meanwhile.
#pragma once

#include <algorithm>

#include "engine/schedule/lane.hpp"

namespace fused_mlp {

// The work of all lanes, as estimated. Guarded by the scheduler's mutex.
struct Promised {
  Nanos queued_ns = 0;       // CPU time of all queued tickets
  Nanos running_end_ns = 0;  // the sum of when each running batch should end
  unsigned running = 0;      // batches that were taken from queues

  // Time until the running batches end, added up.
  Nanos running_ns(Nanos now) const noexcept {
    return std::max<Nanos>(0, running_end_ns - static_cast<Nanos>(running) * now);
  }
};

struct Admission {
  // Decides whether a ticket joins the queue of its lane at `now`. `cores`: how many run batches. `share`:
  // the part of their time that the ticket's model has while all models have work. Needs the scheduler's
  // mutex.
  static Status admit(const Lane& lane, const Ticket& ticket, Nanos now, const Promised& promised,
                      double share, unsigned cores) noexcept;
  // When a ticket should be done: its deadline, or what the lane's target allows it to wait.
  static Nanos due(const Lane& lane, const Ticket& ticket) noexcept;
  // Decides whether the next ticket is run; if not, why. deadline_too_near: its rows alone take too long.
  static Status judge(const Lane& lane, const Ticket& ticket, Nanos now) noexcept;

 private:
  static bool is_owed_a_place(const Lane& lane, const Ticket& ticket) noexcept;
};

}  // namespace fused_mlp
