// SPDX-License-Identifier: Apache-2.0
// The queued tickets of one lane, as intrusive lists, one for each flow and urgency.
//
// Between flows the order is fair by rows and weights. Virtual time advances by the rows taken, divided by
// the weights of the flows that wait. The tag of a flow's next ticket is the virtual time at which it would
// end if all flows were served at once, row by row; the smallest goes first. So a request of 1 row does not
// wait for the 4096 of another connection, and a 4096-row request waits for at most 4096 rows of every other
// flow.
//
// Within a flow the ticket that is due first goes first, as far as its urgency tells: tickets of one urgency
// keep their order of arrival, which makes adding and taking one independent of the length of the queue.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/ref.hpp"
#include "engine/schedule/flow_table.hpp"
#include "engine/ticket.hpp"

namespace fused_mlp {

class LaneQueue {
 public:
  static constexpr std::uint64_t kAnySize = std::numeric_limits<std::uint64_t>::max();
  static constexpr Nanos kNever = std::numeric_limits<Nanos>::max();

  LaneQueue() = default;
  LaneQueue(const LaneQueue&) = delete;
  LaneQueue& operator=(const LaneQueue&) = delete;
  ~LaneQueue();

  bool empty() const noexcept { return heap_.empty(); }
  std::uint64_t rows() const noexcept { return rows_; }
  std::size_t flows() const noexcept { return heap_.size(); }
  double weights() const noexcept { return weights_; }  // of all flows together
  std::uint64_t rows_of(std::uint64_t flow) const noexcept;

  // The class of a ticket that came at `arrival`: 0 is the most urgent.
  static std::size_t urgency_of(Nanos arrival, Nanos due) noexcept;
  std::uint64_t rows_of_urgency(std::size_t urgency) const noexcept { return rows_by_urgency_[urgency]; }
  // The latest time at which a queued ticket of that urgency is due, if it has any.
  Nanos last_due(std::size_t urgency) const noexcept { return last_due_[urgency]; }
  // About the earliest one, and the rows of that ticket: tickets of one urgency are due one after the other,
  // from the earliest to the latest.
  double first_due(std::size_t urgency) const noexcept {
    return 2 * due_sum_[urgency] / static_cast<double>(tickets_[urgency]) -
           static_cast<double>(last_due_[urgency]);
  }
  std::uint64_t mean_rows(std::size_t urgency) const noexcept {
    return rows_by_urgency_[urgency] / tickets_[urgency];
  }

  // The place of the next one of at most that many rows, or kNone. Valid until the queue changes.
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  std::size_t next(std::uint64_t max_rows = kAnySize) const noexcept;
  const Ticket& at(std::size_t place) const noexcept { return *heap_[place].flow->head(); }
  // The earliest time at which one of those that are next in their flow is due, or kNever. Of very many
  // flows, not all are looked at.
  Nanos nearest_due() const noexcept;
  // `due`: its deadline, or when it should be done without one. Throws std::bad_alloc, with everything as it
  // was.
  void push(Ref<Ticket>&& ticket, Nanos due);
  Ref<Ticket> pop(std::size_t place) noexcept;
  template <class Visit>
  void for_each(Visit visit) const {
    for (const Head& each : heap_) {
      for (const Flow::Tickets& list : each.flow->tickets) {
        for (const Ticket* ticket = list.head; ticket != nullptr; ticket = ticket->next_) visit(*ticket);
      }
    }
  }

 private:
  // The next ticket of a flow: what the order needs of it, side by side.
  struct Head {
    double tag;
    Nanos arrival;
    Nanos due;
    Flow* flow;
    std::uint32_t rows;
    bool operator<(const Head& other) const noexcept {
      return tag != other.tag ? tag < other.tag : arrival < other.arrival;
    }
  };

  static Head choose_head(Flow& flow) noexcept;
  void put(std::size_t place, const Head& head) noexcept {
    heap_[place] = head;
    head.flow->place = place;
  }
  void rise(std::size_t place, const Head& head) noexcept;
  void sink(std::size_t place, const Head& head) noexcept;
  void move(std::size_t place, const Head& head) noexcept;
  void search(std::size_t place, std::uint64_t max_rows, std::size_t& best) const noexcept;

  FlowTable flows_;
  std::vector<Head> heap_;  // of each flow; the one that goes first is at the front
  std::uint64_t rows_ = 0;
  std::array<std::uint64_t, kUrgencies> rows_by_urgency_{};
  std::array<std::uint64_t, kUrgencies> tickets_{};
  std::array<Nanos, kUrgencies> last_due_{};
  std::array<double, kUrgencies> due_sum_{};
  double weights_ = 0;
  double virtual_rows_ = 0;
};

}  // namespace fused_mlp
