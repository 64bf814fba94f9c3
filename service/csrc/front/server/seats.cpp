// SPDX-License-Identifier: Apache-2.0
#include "front/server/seats.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "engine/clock.hpp"

namespace fused_mlp::front {

PeerAddress peer_address(int fd) {
  PeerAddress result{};
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return result;
  constexpr size_t kPrefix = 8;
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
    std::memcpy(result.data() + result.size() - sizeof v4, &v4, sizeof v4);
  } else if (address.ss_family == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    // An IPv4 address on a socket for both is the same peer as on a socket for IPv4.
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6);
    mapped ? std::memcpy(result.data() + 12, v6.s6_addr + 12, 4)
           : std::memcpy(result.data(), v6.s6_addr, kPrefix);
  }
  return result;
}

Seats::Seats(const Limits& limits)
    : most_(limits.max_connections),
      most_per_peer_(limits.max_connections_per_peer != 0 ? limits.max_connections_per_peer
                                                          : std::max(1u, limits.max_connections / 2)) {}

Seats::Admission Seats::admit(const PeerAddress& peer) {
  const std::lock_guard lock(mutex_);
  const auto own = counts_.find(peer);
  const bool own_full = own != counts_.end() && own->second >= most_per_peer_;
  Admission result;
  if (own_full || total_ >= most_) {
    // The idlest of the peer that has most; of a peer that has its share, one of its own.
    uint32_t most = 0;
    int64_t since_ns = 0;
    for (const auto& seat : seats_) {
      const int64_t idle_since_ns = seat->idle_since_ns.load(std::memory_order_relaxed);
      if (seat->leaving || idle_since_ns == 0 || (own_full && seat->peer != peer)) continue;
      const uint32_t count = counts_.find(seat->peer)->second;
      if (count < most || (count == most && idle_since_ns >= since_ns)) continue;
      most = count;
      since_ns = idle_since_ns;
      result.making_room = seat;
    }
    if (result.making_room == nullptr) {
      result.refusal = own_full ? "more than max_connections_per_peer connections, none of them idle"
                                : "more than max_connections connections, none of them idle";
      return result;
    }
    result.making_room->leaving = true;
    count(result.making_room->peer, -1);
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
}

void Seats::remove(const std::shared_ptr<Seat>& seat) {
  const std::lock_guard lock(mutex_);
  if (!seat->leaving) count(seat->peer, -1);
  seats_.erase(seat);
}

void Seats::count(const PeerAddress& peer, int change) {
  total_ += static_cast<uint32_t>(change);
  const auto found = counts_.try_emplace(peer, 0).first;
  found->second += static_cast<uint32_t>(change);
  if (found->second == 0) counts_.erase(found);
}

}  // namespace fused_mlp::front
