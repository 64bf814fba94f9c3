// SPDX-License-Identifier: Apache-2.0
// The share of a budget that one address may hold, over several loops.
#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "front/memory/peer_account.hpp"
#include "front/server/seats.hpp"

using namespace fused_mlp;
using namespace fused_mlp::front;

namespace {

constexpr size_t kLimit = 16u << 20;
constexpr size_t kPiece = 2048;

size_t take_all(PeerAccount& account) {
  size_t bytes = 0;
  while (account.take(kPiece)) bytes += kPiece;
  return bytes;
}

bool about(size_t bytes, size_t expected) { return bytes <= expected && bytes >= expected - expected / 8; }

}  // namespace

TEST_CASE("a lone address gets half over all loops") {
  Budget budget(kLimit);
  Account first(budget, 2), second(budget, 2);
  PeerShare share;
  PeerAccount one(first, share), two(second, share);
  size_t bytes = 0;
  for (;;) {  // in turn, as connections on two loops do
    const size_t before = bytes;
    if (one.take(kPiece)) bytes += kPiece;
    if (two.take(kPiece)) bytes += kPiece;
    if (bytes == before) break;
  }
  CHECK(about(bytes, kLimit / 2));
  one.give_back(one.used());
  two.give_back(two.used());
  one.give_back_spare();
  two.give_back_spare();
  CHECK_EQ(share.used(), 0u);
}

TEST_CASE("each further address finds as much as the greedy ones have") {
  Budget budget(kLimit);
  Account account(budget, 1);
  std::vector<std::unique_ptr<PeerShare>> shares;
  std::vector<std::unique_ptr<PeerAccount>> addresses;
  size_t left = kLimit;
  for (int i = 0; i < 4; ++i) {  // the first takes a half, the next a half of what is left
    shares.push_back(std::make_unique<PeerShare>());
    addresses.push_back(std::make_unique<PeerAccount>(account, *shares.back()));
    const size_t bytes = take_all(*addresses.back());
    CHECK(about(bytes, left / 2));
    left -= bytes;
  }
  for (auto& address : addresses) address->give_back(address->used());
  CHECK_EQ(account.used(), 0u);
}

TEST_CASE("what exists already is charged to its address") {
  Budget budget(kLimit);
  Account account(budget, 1);
  PeerShare share;
  {
    PeerAccount address(account, share);
    address.take_anyway(kLimit);
    CHECK_EQ(address.room(), 0u);
    CHECK(!address.take(1));
    CHECK(share.used() >= kLimit);
    address.give_back(kLimit);
    CHECK(address.take(kPiece));
    address.give_back(kPiece);
  }
  CHECK_EQ(share.used(), 0u);
}

TEST_CASE("connections of an address have one ledger") {
  Limits limits;
  limits.max_connections = 4;
  Seats seats(limits);
  PeerAddress a{}, b{};
  b[15] = 1;
  const auto first = seats.admit(a).seat;
  const auto second = seats.admit(a).seat;
  const auto other = seats.admit(b).seat;
  CHECK(first->ledger == second->ledger);
  CHECK(first->ledger != other->ledger);
  // It outlives the connections while something is charged to it.
  const std::shared_ptr<PeerLedger> ledger = first->ledger;
  seats.remove(first);
  seats.remove(second);
  CHECK(seats.admit(a).seat->ledger == ledger);
}

TEST_CASE("an address has few queues however many connections") {
  Limits limits;
  limits.max_connections = 1024;
  Seats seats(limits);
  const PeerAddress a{1}, b{2};
  std::vector<std::shared_ptr<Seat>> held;
  std::map<uint64_t, int> connections;  // by flow
  for (int i = 0; i < 512; ++i) {
    held.push_back(seats.admit(a).seat);
    ++connections[held.back()->ledger->flow(held.back()->queue)];
    if (i < 4) CHECK_EQ(connections.size(), held.size());  // one each, while there are few
  }
  CHECK_EQ(connections.size(), 4u);
  for (const auto& [flow, count] : connections) CHECK_EQ(count, 128);
  const auto other = seats.admit(b).seat;
  CHECK(!connections.contains(other->ledger->flow(other->queue)));
  const uint32_t left = held[5]->queue;
  seats.remove(std::exchange(held[5], nullptr));
  CHECK_EQ(seats.admit(a).seat->queue, left);  // the emptiest
}

TEST_CASE("calls of python are charged from any thread") {
  Budget budget(kLimit);
  const auto ledger = std::make_shared<PeerLedger>();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      std::vector<ControlCharge> charges;
      for (;;) {
        ControlCharge charge(ledger);
        if (!charge.resize(budget, kPiece)) break;
        charges.push_back(std::move(charge));
      }
      CHECK(ledger->control.used() <= kLimit / 2 + 4 * kPiece);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(ledger->control.used(), 0u);
  CHECK_EQ(budget.used(), 0u);
  ControlCharge of_no_peer;
  CHECK(of_no_peer.resize(budget, kLimit));
}

TEST_CASE("an address with many connections has few queues which they share evenly") {
  PeerLedger one, other;
  std::map<uint32_t, int> connections;
  for (int i = 0; i < 512; ++i) ++connections[one.join_queue()];
  CHECK_EQ(connections.size(), size_t{4});
  for (const auto& [queue, count] : connections) CHECK_EQ(count, 128);
  one.leave_queue(2);
  CHECK_EQ(one.join_queue(), 2u);
  CHECK(one.flow(0) != one.flow(1));
  CHECK(one.flow(3) != other.flow(other.join_queue()));
}
