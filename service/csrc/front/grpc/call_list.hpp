// SPDX-License-Identifier: Apache-2.0
// Where calls are kept: the open ones of a connection, and those a loop recycles. Loop thread only.
#pragma once

#include <cstddef>
#include <vector>

#include "front/grpc/call.hpp"

namespace fused_mlp::front {

class CallList {
 public:
  bool empty() const { return first_ == nullptr; }
  Call* first() const { return first_; }
  static Call* next(const Call& call) { return call.next_; }

  void add(Call& call) {
    call.next_ = first_;
    if (first_ != nullptr) first_->previous_ = &call;
    first_ = &call;
  }
  void remove(Call& call) {
    (call.previous_ != nullptr ? call.previous_->next_ : first_) = call.next_;
    if (call.next_ != nullptr) call.next_->previous_ = call.previous_;
  }

 private:
  Call* first_ = nullptr;
};

// Calls are recycled with the memory of their buffers.
class CallPool {
 public:
  explicit CallPool(Loop* loop) : loop_(loop) { free_.reserve(kKept); }
  ~CallPool() {
    for (Call* call : free_) delete call;
  }
  CallPool(const CallPool&) = delete;
  CallPool& operator=(const CallPool&) = delete;

  Call* take() {
    if (free_.empty()) return new Call(loop_);
    Call* call = free_.back();
    free_.pop_back();
    return call;
  }
  void give_back(Call* call) noexcept {
    call->reset();  // before a delete too: it returns what the call holds of the loop's memory
    if (free_.size() < kKept) {
      free_.push_back(call);
    } else {
      delete call;
    }
  }

 private:
  static constexpr size_t kKept = 1024;  // some 2 KiB each
  Loop* loop_;
  std::vector<Call*> free_;
};

}  // namespace fused_mlp::front
