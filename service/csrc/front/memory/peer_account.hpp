// SPDX-License-Identifier: Apache-2.0
// The part of each budget that one peer address holds, over all connections and loops: at most as much as is
// left for the others. n addresses that take all they can get 1/(n+1) of a budget each, and the next one
// still finds as much.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "codec/byte_buffer.hpp"
#include "front/memory/account.hpp"

namespace fused_mlp::front {

// An address's part of one budget. Thread-safe.
class PeerShare {
 public:
  // `left`: of the budget, for all.
  bool take(size_t bytes, size_t left) {
    size_t used = used_.load(std::memory_order_relaxed);
    do {
      if (bytes > left || used > left - bytes || bytes > left - bytes - used) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return true;
  }
  void take_anyway(size_t bytes) { used_.fetch_add(bytes, std::memory_order_relaxed); }
  void give_back(size_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  size_t used() const { return used_.load(std::memory_order_relaxed); }
  // How much more it may take.
  size_t room(size_t left) const { return (left - std::min(used(), left)) / 2; }

 private:
  std::atomic<size_t> used_{0};
};

// One for each address; its seats, loops and calls of Python hold it.
class PeerLedger {
 public:
  PeerShare requests, answers, calls, control;

  // The engine serves queues in turn. Connections of an address beyond kQueues share them, so that hundreds
  // of connections do not get hundreds of turns.
  static constexpr uint32_t kQueues = 4;
  uint32_t join_queue() {
    const std::lock_guard lock(mutex_);
    const auto fewest = std::min_element(in_queue_.begin(), in_queue_.end());
    ++*fewest;
    return static_cast<uint32_t>(fewest - in_queue_.begin());
  }
  void leave_queue(uint32_t queue) {
    const std::lock_guard lock(mutex_);
    --in_queue_[queue];
  }
  // Unlike that of any other queue of any address.
  uint64_t flow(uint32_t queue) const { return reinterpret_cast<uintptr_t>(this) + queue; }

 private:
  std::mutex mutex_;
  std::array<uint32_t, kQueues> in_queue_{};  // connections
};
static_assert(sizeof(PeerLedger) >= PeerLedger::kQueues);

// One loop's lease of an address's share, on top of the loop's own lease of the budget: a request touches no
// cache line that another loop writes. Loop thread only.
class PeerAccount {
 public:
  // The spare bytes of all loops together are at most an eighth of the half that a lone address may have.
  PeerAccount(Account& account, PeerShare& share)
      : account_(account), share_(share), chunk_(account.chunk() / 2) {}
  ~PeerAccount() { share_.give_back(leased_); }
  PeerAccount(const PeerAccount&) = delete;
  PeerAccount& operator=(const PeerAccount&) = delete;

  bool take(size_t bytes) {
    if ((bytes > spare_ && !lease(bytes - spare_)) || !account_.take(bytes)) return false;
    spare_ -= bytes;
    return true;
  }
  void take_anyway(size_t bytes) {
    if (bytes > spare_ && !lease(bytes - spare_)) {
      share_.take_anyway(bytes - spare_);
      leased_ += bytes - spare_;
      spare_ = bytes;
    }
    account_.take_anyway(bytes);
    spare_ -= bytes;
  }
  void give_back(size_t bytes) {
    account_.give_back(bytes);
    spare_ += bytes;
    if (spare_ > 2 * chunk_) keep_spare(chunk_);
  }
  // Called periodically: returns unused lease.
  void give_back_spare() {
    if (spare_ != 0) keep_spare(0);
  }
  size_t used() const { return leased_ - spare_; }
  // The most that one connection may hold: as much as is left for the others of its address.
  size_t room() const { return share_.room(account_.left_lately()) + spare_; }

 private:
  bool lease(size_t missing) {
    const size_t left = account_.left();
    size_t bytes = missing + chunk_;
    if (!share_.take(bytes, left)) {
      bytes = missing;
      if (!share_.take(bytes, left)) return false;
    }
    leased_ += bytes;
    spare_ += bytes;
    return true;
  }
  void keep_spare(size_t bytes) {
    share_.give_back(spare_ - bytes);
    leased_ -= spare_ - bytes;
    spare_ = bytes;
  }

  Account& account_;
  PeerShare& share_;
  const size_t chunk_;
  size_t leased_ = 0, spare_ = 0;  // of the share; and not used
};

inline constexpr size_t kMinOutput = 16u << 10;

// The most that one connection may have waiting in `account`, of its own limit: less when all together are
// short of memory, but never so little that nothing moves.
inline size_t max_output(const PeerAccount& account, size_t limit) {
  return std::min(limit,
                  std::max(kMinOutput, account.room() / 2));  // half: it has parked and serialised bytes
}
// Whether `bytes` reach that. Mostly they are too few for the account to matter.
inline bool reaches_max_output(size_t bytes, const PeerAccount& account, size_t limit) {
  return bytes >= std::min(limit, kMinOutput) && bytes >= max_output(account, limit);
}

// The accounts of an address on one loop. They outlive its connections: the engine may still compute for
// them.
struct PeerAccounts {
  PeerAccounts(Accounts& accounts, std::shared_ptr<PeerLedger> shared)
      : ledger(std::move(shared)),
        requests(accounts.requests, ledger->requests),
        answers(accounts.answers, ledger->answers),
        calls(accounts.calls, ledger->calls) {}
  void give_back_spare() {
    for (PeerAccount* each : {&requests, &answers, &calls}) each->give_back_spare();
  }
  bool unused() const {
    return connections == 0 && requests.used() == 0 && answers.used() == 0 && calls.used() == 0;
  }
  const std::shared_ptr<PeerLedger> ledger;
  PeerAccount requests, answers, calls;
  size_t connections = 0;
};

// The charge of a call that Python answers, to the budget and to its address's share. Any thread may release
// it.
class ControlCharge {
 public:
  ControlCharge() = default;
  // `ledger` null: of no peer.
  explicit ControlCharge(std::shared_ptr<PeerLedger> ledger) : ledger_(std::move(ledger)) {}
  ControlCharge(ControlCharge&&) = default;
  ControlCharge& operator=(ControlCharge&& other) noexcept {
    release();
    ledger_ = std::move(other.ledger_);
    charge_ = std::move(other.charge_);
    return *this;
  }
  ~ControlCharge() { release(); }

  // False: there is no room, and nothing changes.
  bool resize(Budget& budget, size_t bytes) {
    const size_t before = charge_.bytes();
    const size_t more = bytes - std::min(bytes, before);
    if (ledger_ != nullptr && more != 0 && !ledger_->control.take(more, budget.left())) return false;
    if (!charge_.resize(budget, bytes)) {
      if (ledger_ != nullptr) ledger_->control.give_back(more);
      return false;
    }
    if (ledger_ != nullptr && bytes < before) ledger_->control.give_back(before - bytes);
    return true;
  }
  void release() {
    if (ledger_ != nullptr) ledger_->control.give_back(charge_.bytes());
    charge_.release();
  }
  size_t bytes() const { return charge_.bytes(); }

 private:
  std::shared_ptr<PeerLedger> ledger_;
  Charge<Budget> charge_;
};

// Room for `coming` more bytes in a buffer that is charged by its capacity: twice what it needs, at least
// `least`, and no more than `most` unless it needs more. False: there is no room.
inline bool make_room(ByteBuffer& buffer, size_t coming, size_t least, size_t most,
                      Charge<PeerAccount>& charge, PeerAccount& account) {
  if (buffer.room() >= coming) return true;
  const size_t needed = buffer.size() + coming;
  const size_t wanted = std::max(needed, std::min(most, std::max(needed * 2, least)));
  if (wanted > buffer.capacity() && !charge.resize(account, wanted)) return false;
  buffer.reserve(wanted);
  return true;
}

}  // namespace fused_mlp::front
