// SPDX-License-Identifier: Apache-2.0
// The memory that peers can make us keep. A Budget is one limit over all loops. An Account is one loop's
// lease of it, so that charging touches no shared cache line. A Charge is what one holder has taken; it is
// given back with the holder. Peers are charged through peer_account.hpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include "front/limits.hpp"

namespace fused_mlp::front {

// Thread-safe.
class Budget {
 public:
  explicit Budget(size_t limit) : limit_(limit) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  bool take(size_t bytes) {
    size_t used = used_.load(std::memory_order_relaxed);
    const size_t limit = this->limit();
    do {
      if (used > limit || bytes > limit - used) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return true;
  }
  // For what exists already, and will stop growing because the budget is used up.
  void take_anyway(size_t bytes) { used_.fetch_add(bytes, std::memory_order_relaxed); }
  void give_back(size_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  size_t limit() const { return limit_.load(std::memory_order_relaxed); }
  void raise_limit(size_t limit) { limit_.store(std::max(limit, this->limit()), std::memory_order_relaxed); }
  size_t used() const { return used_.load(std::memory_order_relaxed); }  // with what loops have leased
  size_t left() const {
    const size_t limit = this->limit();
    return limit - std::min(used(), limit);
  }

 private:
  std::atomic<size_t> limit_;
  std::atomic<size_t> used_{0};
};

// Loop thread only.
class Account {
 public:
  // The spare bytes of all `loops` together are at most an eighth of the budget.
  Account(Budget& budget, unsigned loops)
      : budget_(budget), chunk_(std::min<size_t>(budget.limit() / (size_t{16} * loops), 256u << 10)) {
    look_at_left();
  }
  ~Account() { budget_.give_back(leased_); }
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  bool take(size_t bytes) {
    if (bytes > spare_ && !lease(bytes - spare_)) return false;
    spare_ -= bytes;
    return true;
  }
  void take_anyway(size_t bytes) {
    if (take(bytes)) return;
    budget_.take_anyway(bytes - spare_);
    leased_ += bytes - spare_;
    spare_ = 0;
    look_at_left();
  }
  void give_back(size_t bytes) {
    spare_ += bytes;
    if (spare_ > 2 * chunk_) keep_spare(chunk_);
  }
  // Called periodically: returns unused lease.
  void give_back_spare() { keep_spare(0); }
  size_t used() const { return leased_ - spare_; }
  size_t chunk() const { return chunk_; }
  // Bytes of the budget that this loop can still take.
  size_t left() const { return budget_.left() + spare_; }
  // The same when it was last looked at: other loops take and give back, too.
  size_t left_lately() const { return left_; }
  void look_at_left() { left_ = left(); }

 private:
  bool lease(size_t missing) {
    size_t bytes = missing + chunk_;
    if (!budget_.take(bytes)) {
      bytes = missing;
      if (!budget_.take(bytes)) return false;
    }
    leased_ += bytes;
    spare_ += bytes;
    look_at_left();
    return true;
  }
  void keep_spare(size_t bytes) {
    if (spare_ != bytes) budget_.give_back(spare_ - bytes);
    leased_ -= spare_ - bytes;
    spare_ = bytes;
    look_at_left();
  }

  Budget& budget_;
  const size_t chunk_;
  size_t leased_ = 0, spare_ = 0;  // of the budget; and not used
  size_t left_ = 0;
};

// Source: a PeerAccount, an Account or a Budget. It must outlive the charge.
template <class Source>
class Charge {
 public:
  Charge() = default;
  Charge(Charge&& other) noexcept : source_(other.source_), bytes_(std::exchange(other.bytes_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    if (this == &other) return *this;
    release();
    source_ = other.source_;
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  ~Charge() { release(); }

  // False: the budget has no room, and nothing changes.
  bool resize(Source& source, size_t bytes) {
    if (bytes > bytes_ && !source.take(bytes - bytes_)) return false;
    if (bytes < bytes_) source.give_back(bytes_ - bytes);
    source_ = &source;
    bytes_ = bytes;
    return true;
  }
  void resize_anyway(Source& source, size_t bytes) {
    if (bytes > bytes_) source.take_anyway(bytes - bytes_);
    if (bytes < bytes_) source.give_back(bytes_ - bytes);
    source_ = &source;
    bytes_ = bytes;
  }
  void release() {
    if (bytes_ != 0) source_->give_back(std::exchange(bytes_, 0));
  }
  size_t bytes() const { return bytes_; }

 private:
  Source* source_ = nullptr;
  size_t bytes_ = 0;
};

// The budgets of all loops together; docs/internals/native-front.md has the table.
struct Budgets {
  explicit Budgets(const Limits& limits)
      : requests(limits.max_buffered_bytes),
        answers(limits.max_total_output_bytes),
        calls(limits.max_call_bytes) {
    allow_messages(limits.max_message_bytes);
  }
  // Makes room for messages of this size; one thread at a time. In the half of `requests` that one address
  // may have, a message of the largest size must fit packed and unpacked, beside what loops have leased and
  // not used.
  void allow_messages(size_t bytes) {
    requests.raise_limit(bytes * 5 + (512u << 10));
    max_message_bytes.store(std::max(bytes, max_message_bytes.load()), std::memory_order_relaxed);
  }
  std::atomic<size_t> max_message_bytes{0};
  Budget requests;  // bytes of requests that wait: for the rest of their message, for their turn, in slabs
  Budget answers;   // that their peers have not taken
  Budget calls;     // open calls with their headers
};

struct Accounts {
  Accounts(Budgets& budgets, unsigned loops)
      : requests(budgets.requests, loops), answers(budgets.answers, loops), calls(budgets.calls, loops) {}
  void look_at_left() {
    for (Account* each : {&requests, &answers, &calls}) each->look_at_left();
  }
  void give_back_spare() {
    for (Account* each : {&requests, &answers, &calls}) each->give_back_spare();
  }
  bool empty() const { return requests.used() == 0 && answers.used() == 0 && calls.used() == 0; }
  Account requests, answers, calls;
};

}  // namespace fused_mlp::front
