// SPDX-License-Identifier: Apache-2.0
#include "front/server/seats.hpp"

#include <algorithm>
#include <exception>

#include "engine/clock.hpp"
#include "front/tls/transport.hpp"

namespace fused_mlp::front {

PeerAddress peer_address(int fd) {
  constexpr size_t kPrefix = 8;
  // An IPv4 address on a socket for both is the same peer as on a socket for IPv4.
  constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  PeerAddress address = ip_address_of(fd);
  const bool ipv4 = std::equal(kMapped.begin(), kMapped.end(), address.begin());
  if (!ipv4) std::fill(address.begin() + kPrefix, address.end(), uint8_t{0});
  return address;
}

Seats::Seats(const Limits& limits)
    : most_(limits.max_connections),
      max_per_peer_(limits.max_connections_per_peer != 0 ? limits.max_connections_per_peer
                                                         : std::max(1u, limits.max_connections / 2)) {}

Seats::Admission Seats::admit(const PeerAddress& peer) {
  const std::lock_guard lock(mutex_);
  const auto own = counts_.find(peer);
  const bool own_full = own != counts_.end() && own->second >= max_per_peer_;
  Admission result;
  if (own_full || total_ >= most_) {
    result.making_room = take_idlest(own_full ? &peer : nullptr);
    if (result.making_room == nullptr) {
      result.refusal = own_full ? "more than max_connections_per_peer connections, none of them idle"
                                : "more than max_connections connections, none of them idle";
      return result;
    }
  }
  auto seat = std::make_shared<Seat>(peer, ledger(peer), steady_clock().now());
  const auto place = seats_.insert(seat).first;
  try {
    count(peer, 1);
  } catch (const std::exception&) {
    seats_.erase(place);
    throw;
  }
  result.seat = std::move(seat);
  return result;
}

std::shared_ptr<Seat> Seats::free_one() {
  const std::lock_guard lock(mutex_);
  return take_idlest(nullptr);
}

// The idlest of the peer that has most; of a peer that has its share, one of its own.
std::shared_ptr<Seat> Seats::take_idlest(const PeerAddress* peer) {
  std::shared_ptr<Seat> idlest;
  uint32_t most = 0;
  int64_t since_ns = 0;
  for (const auto& seat : seats_) {
    const int64_t idle_since_ns = seat->idle_since_ns.load(std::memory_order_relaxed);
    if (seat->leaving || idle_since_ns == 0 || (peer != nullptr && seat->peer != *peer)) continue;
    const uint32_t held = counts_.find(seat->peer)->second;
    if (held < most || (held == most && idle_since_ns >= since_ns)) continue;
    most = held;
    since_ns = idle_since_ns;
    idlest = seat;
  }
  if (idlest != nullptr) {
    idlest->leaving = true;
    ++leaving_;
    count(idlest->peer, -1);
  }
  return idlest;
}

std::shared_ptr<PeerLedger> Seats::ledger(const PeerAddress& peer) {
  if (ledgers_.size() > 2 * size_t{most_}) {
    std::erase_if(ledgers_, [](const auto& entry) { return entry.second.expired(); });
  }
  std::weak_ptr<PeerLedger>& known = ledgers_[peer];
  std::shared_ptr<PeerLedger> result = known.lock();
  if (result == nullptr) known = result = std::make_shared<PeerLedger>();
  return result;
}

void Seats::keep(Seat& seat) {
  const std::lock_guard lock(mutex_);
  count(seat.peer, 1);
  seat.leaving = false;
  --leaving_;
}

void Seats::remove(const std::shared_ptr<Seat>& seat) {
  const std::lock_guard lock(mutex_);
  seat->leaving ? void(--leaving_) : count(seat->peer, -1);
  seats_.erase(seat);
}

void Seats::count(const PeerAddress& peer, int change) {
  total_ += static_cast<uint32_t>(change);
  const auto found = counts_.try_emplace(peer, 0).first;
  found->second += static_cast<uint32_t>(change);
  if (found->second == 0) counts_.erase(found);
}

}  // namespace fused_mlp::front
