// SPDX-License-Identifier: Apache-2.0
// What one address may hold of a budget, over several loops.
#include <memory>
#include <thread>
#include <vector>

#include "front/memory/peer_account.hpp"
#include "front/server/seats.hpp"
#include "testing/check.hpp"

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

TEST(a_lone_address_gets_half_over_all_loops) {
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

TEST(each_further_address_finds_as_much_as_the_greedy_ones_have) {
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

TEST(what_exists_already_is_charged_to_its_address) {
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

TEST(connections_of_an_address_have_one_ledger) {
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

TEST(calls_of_python_are_charged_from_any_thread) {
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
