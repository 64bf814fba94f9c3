// SPDX-License-Identifier: Apache-2.0
// Which peers may connect: a limit for all peers together, a share for each, and idle connections that make
// room. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "front/limits.hpp"
#include "front/memory/peer_account.hpp"

namespace fused_mlp::front {

class Connection;
class Loop;

// One address; of IPv6 the first 64 bits, because a host has all that follow.
using PeerAddress = std::array<uint8_t, 16>;
PeerAddress peer_address(int fd);

// The place of one connection.
struct Seat {
  Seat(const PeerAddress& peer, std::shared_ptr<PeerLedger> ledger, int64_t now_ns)
      : peer(peer), ledger(std::move(ledger)), queue(this->ledger->join_queue()), idle_since_ns(now_ns) {}
  ~Seat() { ledger->leave_queue(queue); }

  const PeerAddress peer;
  const std::shared_ptr<PeerLedger> ledger;  // the same for all seats of an address
  const uint32_t queue;                      // of its address
  Loop* loop = nullptr;                      // where it sits
  Connection* connection = nullptr;          // null: not yet, or gone. For the loop's thread only.
  // Without calls; 0: it has some. Written by the loop's thread, once the connection is there.
  std::atomic<int64_t> idle_since_ns;
  bool leaving = false;  // it was asked to make room, and no longer counts
};

class Seats {
 public:
  explicit Seats(const Limits& limits);

  struct Admission {
    std::shared_ptr<Seat> seat;         // null: refused
    std::shared_ptr<Seat> making_room;  // the connection that must go, if one must
    const char* refusal = nullptr;
  };
  Admission admit(const PeerAddress& peer);
  // A connection that must make room for others; null: none is idle.
  std::shared_ptr<Seat> free_one();
  // A seat that was to make room has got a call meanwhile.
  void keep(Seat& seat);
  void remove(const std::shared_ptr<Seat>& seat);
  // Connections that were asked to make room, and still have their descriptors.
  uint32_t leaving() const { return leaving_.load(std::memory_order_relaxed); }

 private:
  void count(const PeerAddress& peer, int change);
  std::shared_ptr<Seat> take_idlest(const PeerAddress* peer);
  std::shared_ptr<PeerLedger> ledger(const PeerAddress& peer);

  const uint32_t most_, max_per_peer_;
  std::mutex mutex_;
  std::unordered_set<std::shared_ptr<Seat>> seats_;
  std::map<PeerAddress, uint32_t> counts_;
  // Also of addresses whose last connection has gone while their calls are still being computed.
  std::map<PeerAddress, std::weak_ptr<PeerLedger>> ledgers_;
  uint32_t total_ = 0;
  std::atomic<uint32_t> leaving_ = 0;
};

}  // namespace fused_mlp::front
