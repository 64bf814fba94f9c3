// SPDX-License-Identifier: Apache-2.0
// Admission: whether a ticket is queued, and whether it is still run when its batch is formed.
#pragma once

#include "engine/lane.hpp"

namespace fused_mlp {

class Admission {
 public:
  explicit Admission(unsigned workers) : workers_(workers) {}

  // Of a ticket that joins the queue of its lane. With the scheduler's mutex.
  Status admit(Lane& lane, const Ticket& ticket) const noexcept;
  // Of a ticket that is next: ok, or why it is dropped.
  static Status judge(Lane& lane, const Ticket& ticket, Nanos now) noexcept;

 private:
  static bool is_owed_a_place(const Lane& lane, const Ticket& ticket) noexcept;

  const unsigned workers_;
};

}  // namespace fused_mlp
