// SPDX-License-Identifier: Apache-2.0
// A queue in which addresses take turns, and the senders of an address among themselves: many items of one do
// not delay those of another. Items of one sender stay in order. Not thread-safe. A push that throws changes
// nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fused_mlp::front {

// Queues by key, of which each has one turn after the other. Queue: empty(), and it is never empty here.
template <class Queue>
class TurnQueues {
 public:
  bool empty() const { return turns_.empty(); }

  // Calls `push` with the queue of `key`.
  template <class Push>
  void push(uint64_t key, Push push) {
    std::list<uint64_t> turn;
    const auto [found, fresh] = queues_.try_emplace(key);
    try {
      if (fresh) turn.push_back(key);
      push(found->second);
    } catch (...) {
      if (fresh) queues_.erase(found);
      throw;
    }
    turns_.splice(turns_.end(), turn);
  }
  // Calls `pop` with the queue whose turn it is.
  template <class Pop>
  void pop(Pop pop) {
    const auto found = queues_.find(turns_.front());
    pop(found->second);
    if (found->second.empty()) {
      queues_.erase(found);
      turns_.pop_front();
    } else {
      turns_.splice(turns_.end(), turns_, turns_.begin());
    }
  }

 private:
  std::unordered_map<uint64_t, Queue> queues_;
  std::list<uint64_t> turns_;  // keys of queues_
};

template <class T>
class FairQueue {
 public:
  bool empty() const { return size_ == 0; }

  // `sender`: among those of `address`.
  void push(uint64_t address, uint64_t sender, T&& item) {
    addresses_.push(address, [&](Senders& senders) {
      senders.push(sender, [&](std::deque<T>& items) { items.push_back(std::move(item)); });
    });
    ++size_;
  }
  // One of each address in turn, up to `most`.
  std::vector<T> take(size_t most) {
    std::vector<T> taken;
    taken.reserve(std::min(most, size_));
    while (taken.size() < most && size_ != 0) {
      addresses_.pop([&](Senders& senders) {
        senders.pop([&](std::deque<T>& items) {
          taken.push_back(std::move(items.front()));
          items.pop_front();
        });
      });
      --size_;
    }
    return taken;
  }

 private:
  using Senders = TurnQueues<std::deque<T>>;
  TurnQueues<Senders> addresses_;
  size_t size_ = 0;
};

}  // namespace fused_mlp::front
