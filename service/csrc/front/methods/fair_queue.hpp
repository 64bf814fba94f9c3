// A queue in which senders take turns: many items of one do not delay those of another. Items of one sender
// stay in order. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fused_mlp::front {

template <class T>
class FairQueue {
 public:
  bool empty() const { return turns_.empty(); }

  void push(uint64_t sender, T&& item) {
    std::deque<T>& items = items_[sender];
    items.push_back(std::move(item));
    if (items.size() == 1) turns_.push_back(sender);
  }
  // One of each sender in turn, up to `most`.
  std::vector<T> take(size_t most) {
    std::vector<T> taken;
    while (taken.size() < most && !turns_.empty()) {
      const auto found = items_.find(turns_.front());
      turns_.pop_front();
      taken.push_back(std::move(found->second.front()));
      found->second.pop_front();
      if (found->second.empty()) {
        items_.erase(found);
      } else {
        turns_.push_back(found->first);
      }
    }
    return taken;
  }

 private:
  std::unordered_map<uint64_t, std::deque<T>> items_;
  std::deque<uint64_t> turns_;  // senders of items_
};

}  // namespace fused_mlp::front
