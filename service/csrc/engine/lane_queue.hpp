// SPDX-License-Identifier: Apache-2.0
// The queued tickets of one lane, as intrusive lists, one for each flow.
//
// Order: by rows, fair between flows. Virtual time advances by the rows taken, divided by the flows that
// wait. A ticket's tag is the virtual time at which it would end if all flows were served at once, row by
// row; the smallest goes first. So a request of 1 row does not wait for the 4096 of another connection, nor
// those for more than as many rows of each other flow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/flow_table.hpp"
#include "engine/ref.hpp"
#include "engine/ticket.hpp"

namespace fused_mlp {

class LaneQueue {
 public:
  static constexpr std::uint64_t kAnySize = std::numeric_limits<std::uint64_t>::max();

  LaneQueue() = default;
  LaneQueue(const LaneQueue&) = delete;
  LaneQueue& operator=(const LaneQueue&) = delete;
  ~LaneQueue();

  bool empty() const noexcept { return heap_.empty(); }
  std::uint64_t rows() const noexcept { return rows_; }
  std::size_t flows() const noexcept { return heap_.size(); }
  std::uint64_t rows_of(std::uint64_t flow) const noexcept;
  // Rows that go before a ticket of that flow and size, if it came now.
  std::uint64_t rows_before(std::uint64_t flow, std::uint32_t rows) const noexcept;
  // The place of the next one of at most that many rows, or kNone. Valid until the queue changes.
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  std::size_t next(std::uint64_t most_rows = kAnySize) const noexcept;
  const Ticket& at(std::size_t place) const noexcept { return *heap_[place].flow->head; }
  // The earliest deadline of those that are next in their flow, or kNoDeadline. Of very many flows, not all
  // are looked at.
  static constexpr Nanos kNoDeadline = std::numeric_limits<Nanos>::max();
  Nanos nearest_deadline() const noexcept;
  // Throws std::bad_alloc, with everything as it was.
  void push(Ref<Ticket>&& ticket);
  Ref<Ticket> pop(std::size_t place) noexcept;
  template <class Visit>
  void for_each(Visit visit) const {
    for (const Head& each : heap_) {
      for (const Ticket* ticket = each.flow->head; ticket != nullptr; ticket = ticket->next_) visit(*ticket);
    }
  }

 private:
  // The next ticket of a flow: what the order needs of it, side by side.
  struct Head {
    double tag;
    Nanos arrival;
    Flow* flow;
    std::uint32_t rows;
    bool operator<(const Head& other) const noexcept {
      return tag != other.tag ? tag < other.tag : arrival < other.arrival;
    }
  };

  static Head head_of(Flow& flow) noexcept {
    return {flow.head->tag_, flow.head->arrival_ns, &flow, flow.head->rows()};
  }
  void rise(std::size_t place, const Head& head) noexcept;
  void sink(std::size_t place, const Head& head) noexcept;
  void search(std::size_t place, std::uint64_t most_rows, std::size_t& best) const noexcept;

  FlowTable flows_;
  std::vector<Head> heap_;  // of each flow; the one that goes first is at the front
  std::uint64_t rows_ = 0;
  double virtual_rows_ = 0;
};

}  // namespace fused_mlp
