// SPDX-License-Identifier: Apache-2.0
// The flows of a lane that have tickets, by key: open addressing, so that finding one costs one cache line
// and adding one allocates nothing, once the table has its size.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace fused_mlp {

class Ticket;

// How soon a ticket was due when it came: within 4 ms, 8 ms, ..., 256 ms, or later.
inline constexpr std::size_t kUrgencies = 8;

struct Flow {
  struct Tickets {
    Ticket* head = nullptr;
    Ticket* tail = nullptr;
  };
  std::uint64_t key = 0;
  std::uint64_t rows = 0;
  double weight = 1;        // of the ticket that came last
  double tag = 0;           // of the last ticket that was taken: see LaneQueue
  std::size_t place = 0;    // in the heap of its queue
  std::size_t urgency = 0;  // of the ticket that is next
  std::array<Tickets, kUrgencies> tickets{};

  Ticket* head() const noexcept { return tickets[urgency].head; }
};

class FlowTable {
 public:
  std::size_t size() const noexcept { return size_; }
  // Null: there is none.
  Flow* find(std::uint64_t key) const noexcept {
    if (size_ == 0) return nullptr;
    std::size_t slot = slot_of(key);
    while (slots_[slot] != nullptr && slots_[slot]->key != key) slot = after(slot);
    return slots_[slot];
  }
  // The key must be new. Throws std::bad_alloc, and changes nothing then.
  Flow& add(std::uint64_t key);
  void remove(const Flow& flow) noexcept;

 private:
  // Fibonacci hashing: the upper bits of a product depend on all bits of the key.
  std::size_t slot_of(std::uint64_t key) const noexcept {
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> 32) & (slots_.size() - 1);
  }
  std::size_t after(std::size_t slot) const noexcept { return (slot + 1) & (slots_.size() - 1); }
  void put(Flow& flow) noexcept;
  void grow();

  std::vector<Flow*> slots_;  // a power of two; at most half of them are used
  std::deque<Flow> flows_;    // at fixed addresses
  std::vector<Flow*> free_;   // of flows_; has room for all of them
  std::size_t size_ = 0;
};

}  // namespace fused_mlp
