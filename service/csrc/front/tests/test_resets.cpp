// SPDX-License-Identifier: Apache-2.0
// Calls with a deadline that are reset: those of a client whose deadlines have passed never end its
// connection, those that are reset at once do.
#include <doctest/doctest.h>

#include <string>

#include "front/http2/timers.hpp"
#include "front/tests/loop_rig.hpp"

using namespace fused_mlp;
using namespace fused_mlp::front;
using namespace fused_mlp::front::test;

namespace {

constexpr Nanos kMillisecond = 1'000'000;
const std::string kPingOfOurs(reinterpret_cast<const char*>(SendTime::kPing), sizeof SendTime::kPing);

// A client of calls with `timeout` (as in grpc-timeout) that are not answered.
struct ResettingCaller {
  ResettingCaller(Rig& rig, std::string timeout) : peer(rig), timeout(std::move(timeout)) {}

  std::string call() {
    last += 2;
    return frame(1, kEndHeaders, last, request_fields("/s") + literal("grpc-timeout", timeout)) +
           frame(0, 0, last, framed("message"));
  }
  std::string reset(int stream) { return frame(3, 0, stream, std::string("\0\0\0\x08", 4)); }
  void send(const std::string& bytes) {
    peer.send(bytes);
    for (int i = 0; i < 3; ++i) peer.rig.turn();
    peer.read();
  }
  bool was_pinged() const { return peer.received.find(kPingOfOurs) != std::string::npos; }
  // Answers the server's ping, if there is one.
  void answer_ping() {
    peer.read();
    if (!was_pinged()) return;
    peer.received.clear();
    send(frame(6, 1, 0, kPingOfOurs));
  }

  TestPeer peer;
  std::string timeout;
  int last = -1;
};

}  // namespace

TEST_CASE("calls with a deadline that are reset at once end the connection") {
  ManualClock clock;
  Rig rig({}, clock);
  ResettingCaller caller(rig, "10S");
  for (int i = 0; i < 60 && !caller.peer.was_told(End::resets); ++i) {
    std::string bytes;
    for (int k = 0; k < 20; ++k) {
      bytes += caller.call();
      bytes += caller.reset(caller.last);
    }
    caller.send(bytes);
    caller.answer_ping();
    clock.advance(kMillisecond);
  }
  CHECK(caller.peer.was_told(End::resets));
}

TEST_CASE("a peer that does not answer pings gains nothing") {
  ManualClock clock;
  Limits limits;
  limits.max_resets_per_s = 100;
  Rig rig(limits, clock);
  ResettingCaller caller(rig, "10S");
  int steps = 0;
  for (; steps < 1000 && !caller.peer.was_told(End::resets); ++steps) {
    std::string bytes;
    for (int k = 0; k < 20; ++k) {
      bytes += caller.call();
      bytes += caller.reset(caller.last);
    }
    caller.send(bytes);
    clock.advance(40 * kMillisecond);
  }
  CHECK(caller.peer.was_told(End::resets));
  CHECK(steps * 0.04 >= limits.keepalive_timeout_s);  // and not before
}

TEST_CASE("missed deadlines never end a connection") {
  ManualClock clock;
  Limits limits;
  limits.max_resets_per_s = 100;
  Rig rig(limits, clock);
  ResettingCaller caller(rig, "50m");
  for (int second = 0; second < 20; ++second) {
    std::string calls, resets;
    for (int k = 0; k < 900; ++k) {
      calls += caller.call();
      resets += caller.reset(caller.last);
    }
    if (second % 2 == 0) {
      caller.send(calls);
      clock.advance(60 * kMillisecond);
      caller.send(resets);
    } else {
      // The server, or the network, was stuck: calls and resets are read at once.
      clock.advance(400 * kMillisecond);
      caller.send(calls + resets);
    }
    caller.answer_ping();
    clock.advance(10 * kMillisecond);
  }
  CHECK(caller.peer.received.find("early") == std::string::npos);
  CHECK_EQ(rig.loop.stats().connections.load(), 1u);
}
