// SPDX-License-Identifier: Apache-2.0
// The rig that the fuzzers of the front run against: a whole loop with engine and hand-off, on one thread,
// under small limits, and the memory invariant.
#pragma once

#include <sanitizer/allocator_interface.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "front/methods/application.hpp"
#include "front/server/loop.hpp"
#include "toy_model.hpp"

namespace fused_mlp::front::test {

inline constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
inline constexpr std::string_view kSettings("\0\0\0\4\0\0\0\0\0", 9);

inline Limits small_limits() {
  Limits limits;
  limits.max_message_bytes = 64u << 10;
  limits.max_concurrent_streams = 32;
  limits.max_output_bytes = 64u << 10;
  limits.max_buffered_bytes = 1u << 20;
  limits.max_total_output_bytes = 1u << 20;
  limits.max_call_bytes = 1u << 20;
  limits.max_control_bytes = 1u << 20;
  return limits;
}

// The memory that a loop may hold beside the budgets above: slabs that messages lie in (64 of 256 KiB before
// messages are copied), calls and buffers that are kept for the next ones, two sessions of nghttp2.
inline constexpr size_t kMaxBytes = 24u << 20;

// Time goes on by a step with each look at it: what happens follows from the input alone, whatever the
// machine and the sanitizers make of a turn's millisecond.
class StepClock final : public ManualClock {
 public:
  Nanos now() const noexcept override { return now_ += kStep_ns; }

 private:
  static constexpr Nanos kStep_ns = Turn::kVisit_ns / 4;
  mutable Nanos now_ = 1'000'000'000;
};

// A socket of Linux holds some 200 KB, that is 40 thousand messages; a turn takes at least 32 of them.
inline constexpr int kMaxRounds = 2000;

struct Rig {
  const std::shared_ptr<StepClock> clock = std::make_shared<StepClock>();
  ToyService toy{0, 8192, 4096, clock};
  Bridge bridge{small_limits().max_control_bytes};
  HealthTable health;
  Budgets budgets{small_limits()};
  Loop loop{small_limits(), budgets, 1, nullptr, [] {}, *clock};
  size_t base_bytes = 0;

  Rig() {
    const std::vector<PythonRpc> rpcs = {{"/grpc.health.v1.Health/Check", false}, {"/s.S/Stream", true}};
    loop.serve_here(make_service_application(loop, toy.engine, toy.router, bridge, health, rpcs,
                                             RestOptions{true, {"https://a.example"}}));
    base_bytes = __sanitizer_get_current_allocated_bytes();
  }
  // One end of a new connection; -1: none to be had.
  int connect(Protocol protocol = Protocol::grpc) {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) != 0) return -1;
    loop.adopt(fds[0], nullptr, protocol);
    turn();
    return fds[1];
  }
  void turn(bool python = true) {
    loop.round(0);
    if (python) play_python();
    const size_t bytes = __sanitizer_get_current_allocated_bytes();
    if (bytes > base_bytes + kMaxBytes) fail("more memory than the budgets allow", bytes - base_bytes);
  }
  // After the last connection was closed: nothing of it is left. Its last bytes are dealt with first, in
  // turns that are bounded by time; in each it makes progress.
  void check_empty() {
    const auto busy = [&] { return loop.connections() != 0 || !loop.application().idle(); };
    for (int i = 0; i < 3 || (i < kMaxRounds && busy()); ++i) turn();
    if (loop.connections() != 0) fail("connections are left", loop.connections());
    if (!loop.application().idle()) fail("requests are left", 1);
    const Accounts& accounts = loop.accounts();
    if (accounts.requests.used() != 0) fail("requests are still charged", accounts.requests.used());
    if (accounts.answers.used() != 0) fail("answers are still charged", accounts.answers.used());
    if (accounts.calls.used() != 0) fail("calls are still charged", accounts.calls.used());
    if (bridge.budget().used() != 0) fail("calls of Python are still charged", bridge.budget().used());
  }

 private:
  // Answers what it is handed at once, on the same thread.
  void play_python() {
    for (const Event& event : bridge.drain()) {
      if (event.kind == EventKind::start) bridge.send(event.call, event.body);
      if (event.kind == EventKind::message) bridge.message_done(event.call);
      const bool rest = event.kind == EventKind::start && event.path[0] != '/';
      if (rest) bridge.finish(event.call, 0, "", {{":status", "405"}, {"content-type", "text/html"}});
      if (event.kind == EventKind::half_close || event.path.ends_with("Check")) {
        bridge.finish(event.call, 5, "not % found", {{"x-bin", std::string(3, '\0')}});
      }
    }
  }
  [[noreturn]] static void fail(const char* what, size_t number) {
    std::fprintf(stderr, "%s: %zu\n", what, number);
    std::abort();
  }
};

inline void drain(int fd) {
  char bytes[4096];
  while (::read(fd, bytes, sizeof bytes) > 0) {
  }
}

// A whole connection, which it closes. `choice`: bit 0 puts HTTP/2's preface before the input, bit 1 cuts it
// into reads of `step` bytes, bit 7 is a peer that never reads.
inline void play(Rig& rig, int fd, const uint8_t* data, size_t size, uint8_t choice, size_t step) {
  if ((choice & 1) != 0) {
    ::send(fd, kPreface.data(), kPreface.size(), MSG_NOSIGNAL);
    ::send(fd, kSettings.data(), kSettings.size(), MSG_NOSIGNAL);
  }
  if ((choice & 2) == 0) step = size;
  while (size != 0) {
    const size_t n = std::min(size, step);
    if (::send(fd, data, n, MSG_NOSIGNAL) != static_cast<ssize_t>(n)) break;  // closed on us, or full
    data += n;
    size -= n;
    rig.turn();
    if ((choice & 128) == 0) drain(fd);
  }
  rig.turn();
  ::close(fd);
  rig.check_empty();
}

}  // namespace fused_mlp::front::test
