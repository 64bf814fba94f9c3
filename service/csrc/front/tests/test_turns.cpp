// SPDX-License-Identifier: Apache-2.0
// How long a peer can keep a loop from the others, whatever it sends: rounds are driven by hand, and the CPU
// time of each is measured.
#include <doctest/doctest.h>
#include <unistd.h>

#include <new>
#include <string>

#include "front/methods/fair_queue.hpp"
#include "front/server/seats.hpp"
#include "front/tests/gzipped.hpp"
#include "front/tests/loop_rig.hpp"

using namespace fused_mlp;
using namespace fused_mlp::front;
using namespace fused_mlp::front::test;

namespace {

// A sanitizer makes everything some times slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kLongestRound_ns = 200'000'000;
#else
constexpr int64_t kLongestRound_ns = 20'000'000;
#endif

// A good peer's call is answered within a few rounds, and none of them took long.
void check_others_are_served(Rig& rig, TestPeer& good) {
  static int stream = 1;
  stream += 2;
  const std::string body = "answer " + std::to_string(stream);
  good.send(frame(1, kEndHeaders, stream, request_fields("/u")) + frame(0, kEndStream, stream, framed(body)));
  for (int i = 0; i < 4; ++i) rig.turn();
  good.read();
  CHECK(good.received.find(body) != std::string::npos);
  CHECK(rig.longest_ns < kLongestRound_ns);
}

}  // namespace

TEST_CASE("references to a large header field end the connection and cost little") {
  Rig rig;
  TestPeer good(rig), bad(rig);
  const std::string references(12'000, '\xbe');
  bad.send(
      frame(1, 0, 1, request_fields("/u") + literal("x-large", std::string(4000, 'v'), true) + references));
  check_others_are_served(rig, good);
  for (int i = 0; i < 7; ++i) bad.send(frame(9, 0, 1, references));
  for (int i = 0; i < 20; ++i) rig.turn();
  check_others_are_served(rig, good);
  CHECK(bad.was_told(End::headers));
}

TEST_CASE("references in trailers and to invalid fields are counted too") {
  for (const char* value : {"v", "\x01"}) {
    Rig rig;
    TestPeer good(rig), bad(rig);
    const std::string large = literal("x-large", std::string(4000, value[0]), true);
    bad.send(frame(1, kEndHeaders, 1, request_fields("/s") + large));
    bad.send(frame(1, kEndHeaders | kEndStream, 1, std::string(16'000, '\xbe')));
    for (int i = 0; i < 20; ++i) rig.turn();
    check_others_are_served(rig, good);
    CHECK_EQ(rig.loop.stats().sent_resets.load(), 1u);
  }
}

TEST_CASE("many requests with headers that cost much share the loop") {
  Rig rig;
  TestPeer good(rig), bad(rig);
  bad.send(frame(1, kEndHeaders, 1, request_fields("/s") + literal("x-large", std::string(3500, 'v'), true)));
  std::string requests;
  for (int i = 1; i < 1000; ++i) {
    requests += frame(1, kEndHeaders | kEndStream, 1 + 2 * i, request_fields("/u") + std::string(17, '\xbe'));
  }
  bad.send(requests);
  check_others_are_served(rig, good);
}

TEST_CASE("gzip that unpacks to much shares the loop") {
  Limits limits;
  limits.max_message_bytes = 64u << 20;
  Rig rig(limits);
  TestPeer good(rig), bad(rig);
  const std::string bomb = framed(gzipped(std::string(60u << 20, '\0')), true);
  bad.send(frame(1, kEndHeaders, 1, request_fields("/s", "gzip")));
  for (size_t at = 0; at < bomb.size(); at += 16'000) {
    const std::string part = bomb.substr(at, 16'000);
    // Two messages in one frame: the second waits in the rest of it.
    bad.send(frame(0, 0, 1, at + 16'000 < bomb.size() ? part : part + framed("second")));
  }
  check_others_are_served(rig, good);
  CHECK_EQ(rig.application->stream.messages, 0u);
  for (int i = 0; i < 2000 && rig.application->stream.messages < 2; ++i) rig.turn();
  CHECK_EQ(rig.application->stream.messages, 2u);
  CHECK(rig.longest_ns < kLongestRound_ns);
}

TEST_CASE("padding after a message that takes several turns is skipped") {
  Limits limits;
  limits.max_message_bytes = 64u << 20;
  Rig rig(limits);
  TestPeer bad(rig);
  const std::string bomb = framed(gzipped(std::string(12u << 20, '\0')), true);
  constexpr int kPadded = 8;
  const std::string padding(200, '\0');
  bad.send(frame(1, kEndHeaders, 1, request_fields("/s", "gzip")));
  bad.send(frame(0, kPadded, 1, '\xc8' + bomb + framed("second") + padding) +
           frame(0, kEndStream, 1, framed("third")));
  for (int i = 0; i < 2000 && rig.application->stream.messages < 3; ++i) rig.turn();
  CHECK_EQ(rig.application->stream.messages, 3u);
  CHECK_EQ(rig.loop.stats().connections.load(), 1u);
}

TEST_CASE("a stream of empty messages shares the loop") {
  Rig rig;
  TestPeer good(rig), bad(rig);
  std::string messages;
  for (int i = 0; i < 3'000; ++i) messages += framed("");
  bad.send(frame(1, kEndHeaders, 1, request_fields("/s")));
  for (int i = 0; i < 40; ++i) bad.send(frame(0, 0, 1, messages));
  check_others_are_served(rig, good);
  for (int i = 0; i < 2000 && rig.application->stream.messages < 120'000; ++i) rig.turn();
  CHECK_EQ(rig.application->stream.messages, 120'000u);
}

TEST_CASE("an exception ends its connection and nothing else") {
  Rig rig;
  TestPeer good(rig), bad(rig);
  bad.send(frame(1, kEndHeaders, 1, request_fields("/u")) + frame(0, kEndStream, 1, framed("throw")));
  rig.turn();
  CHECK_EQ(rig.ended(End::failed), 1u);
  CHECK_EQ(rig.loop.stats().failures.load(), 1u);
  rig.loop.run_soon([] { throw std::bad_alloc(); });
  check_others_are_served(rig, good);
  CHECK_EQ(rig.loop.stats().failures.load(), 2u);
}

TEST_CASE("a header block that does not end times out") {
  Limits limits;
  limits.receive_timeout_s = 0.01;
  Rig rig(limits);
  TestPeer good(rig), bad(rig);
  bad.send(frame(1, 0, 1, request_fields("/u")));
  const std::string more = frame(9, 0, 1, literal("x-slow", std::string(10'000, 'v')));
  bad.send(more.substr(0, 9));
  const int64_t begin = rig.clock.now();
  for (size_t i = 9; !bad.was_told(End::slow_headers) && rig.clock.now() - begin < 5'000'000'000; ++i) {
    if (i < more.size()) bad.send(more.substr(i, 1));  // a trickle does not help
    rig.turn();
  }
  CHECK(bad.was_told(End::slow_headers));
  check_others_are_served(rig, good);
}

TEST_CASE("a stall of the loop does not count against a peer") {
  Limits limits;
  limits.receive_timeout_s = 0.3;
  Rig rig(limits);
  TestPeer slow(rig);
  slow.send(frame(1, kEndHeaders, 1, request_fields("/u")) + frame(0, 0, 1, framed("half").substr(0, 7)));
  for (int i = 0; i < 3; ++i) rig.turn();
  ::usleep(500'000);  // the stall itself: the loop reads nothing meanwhile
  rig.turn();
  slow.send(frame(0, kEndStream, 1, framed("half").substr(7)));
  for (int i = 0; i < 3; ++i) rig.turn();
  slow.read();
  CHECK(slow.received.find("half") != std::string::npos);
}

TEST_CASE("senders take turns and keep their order") {
  FairQueue<std::string> queue;
  for (int i = 0; i < 1000; ++i) queue.push(0, 1, "a" + std::to_string(i));
  queue.push(0, 2, "b0");
  queue.push(0, 2, "b1");
  queue.push(0, 3, "c0");
  CHECK(queue.take(6) == (std::vector<std::string>{"a0", "b0", "c0", "a1", "b1", "a2"}));
  CHECK_EQ(queue.take(2000).size(), 997u);
  CHECK(queue.empty());
  queue.push(0, 1, "again");
  CHECK(queue.take(1) == std::vector<std::string>{"again"});
}

TEST_CASE("addresses take turns however many senders each has") {
  FairQueue<std::string> queue;
  for (uint64_t sender = 0; sender < 100; ++sender) queue.push(1, sender, "crowd" + std::to_string(sender));
  queue.push(2, 0, "other0");
  queue.push(2, 0, "other1");
  queue.push(2, 7, "other2");
  CHECK(queue.take(6) ==
        (std::vector<std::string>{"crowd0", "other0", "crowd1", "other2", "crowd2", "other1"}));
  CHECK_EQ(queue.take(2000).size(), 97u);
  CHECK(queue.empty());
}

TEST_CASE("a burst of new seats replaces idle ones not itself") {
  Limits limits;
  limits.max_connections = 8;
  limits.max_connections_per_peer = 4;
  Seats seats(limits);
  const PeerAddress crowd{1};
  std::vector<std::shared_ptr<Seat>> idle;
  for (int i = 0; i < 4; ++i) idle.push_back(seats.admit(crowd).seat);
  for (int i = 0; i < 4; ++i) idle[i]->idle_since_ns = 10 + i;  // long ago
  for (int i = 0; i < 4; ++i) CHECK(seats.admit(crowd).making_room == idle[i]);
}

TEST_CASE("the idlest seat of the peer with most makes room") {
  Limits limits;
  limits.max_connections = 4;
  limits.max_connections_per_peer = 3;
  Seats seats(limits);
  const PeerAddress crowd{1}, other{2}, third{3};
  std::vector<std::shared_ptr<Seat>> taken;
  for (const int64_t idle_since : {30, 20, 0}) {
    taken.push_back(seats.admit(crowd).seat);
    taken.back()->idle_since_ns = idle_since;
  }
  taken.push_back(seats.admit(other).seat);
  taken.back()->idle_since_ns = 10;
  // Its share is used up: one of its own goes, and the one with calls stays.
  Seats::Admission own = seats.admit(crowd);
  CHECK(own.making_room == taken[1]);
  own.seat->idle_since_ns = 40;
  // All is full: the idlest of the peer that has most.
  Seats::Admission newcomer = seats.admit(third);
  CHECK(newcomer.making_room == taken[0]);
  newcomer.seat->idle_since_ns = 0;
  // One that got a call meanwhile stays, and is counted again.
  seats.keep(*taken[0]);
  taken[0]->idle_since_ns = 0;
  own.seat->idle_since_ns = 0;
  CHECK(seats.admit(crowd).seat == nullptr);
  seats.remove(own.seat);
  seats.remove(taken[1]);
  CHECK(seats.admit(crowd).making_room == taken[3]);
}
