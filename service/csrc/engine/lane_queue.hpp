// The queued tickets of one lane, as intrusive lists, one for each flow: queueing allocates nothing, except
// when more flows wait at once than ever before.
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

#include "engine/ref.hpp"
#include "engine/ticket.hpp"

namespace fused_mlp {

class LaneQueue {
 public:
  static constexpr std::uint64_t kAnySize = std::numeric_limits<std::uint64_t>::max();
  static constexpr Nanos kEver = std::numeric_limits<Nanos>::max();
  static constexpr std::size_t kMostFlows = 64;  // at once; more share these, by their key

  LaneQueue() = default;
  LaneQueue(const LaneQueue&) = delete;
  LaneQueue& operator=(const LaneQueue&) = delete;
  ~LaneQueue();

  bool empty() const noexcept { return flows_.empty(); }
  std::uint64_t rows() const noexcept { return rows_; }
  std::size_t flows() const noexcept { return flows_.size(); }
  std::uint64_t rows_of(std::uint64_t flow) const noexcept {
    const Flow* const found = find(flow);
    return found ? found->rows : 0;
  }
  // Of those that event loops will run.
  std::uint64_t loop_rows() const noexcept { return loop_rows_; }
  // Rows that go before a ticket of that flow and size, if it came now.
  std::uint64_t rows_before(std::uint64_t flow, std::uint32_t rows) const noexcept;
  // The next one of at most that many rows, or null. Leaves out those for event loops that came after
  // `loops_until`.
  const Ticket* next(std::uint64_t most_rows = kAnySize, Nanos loops_until = kEver) const noexcept;
  // Of those at the head of their flow; not for an empty queue.
  Nanos oldest_arrival() const noexcept;
  // The earliest deadline of those at the head of their flow; 0: none.
  Nanos nearest_deadline() const noexcept;
  // Throws std::bad_alloc for a first flow; with others there, a flow that finds no memory joins one of them.
  void push(Ref<Ticket>&& ticket, bool for_loop = false);
  // From now on workers run what event loops were to run.
  void hand_to_workers() noexcept;
  // Takes the one that next() returned.
  Ref<Ticket> pop(const Ticket* ticket) noexcept;
  template <class Visit>
  void for_each(Visit visit) const {
    for (const Flow& flow : flows_) {
      for (const Ticket* ticket = flow.head; ticket != nullptr; ticket = ticket->next_) visit(*ticket);
    }
  }

 private:
  struct Flow {
    std::uint64_t key;
    Ticket* head;
    Ticket* tail;
    std::uint64_t rows;
  };

  const Flow* find(std::uint64_t key) const noexcept;
  Flow& find_or_add(std::uint64_t key);

  std::vector<Flow> flows_;  // those that have tickets, in no order
  std::uint64_t rows_ = 0, loop_rows_ = 0;
  double virtual_rows_ = 0;
};

}  // namespace fused_mlp
