// SPDX-License-Identifier: Apache-2.0
// A loop that a test drives round by round, an application that echoes, and a peer at the other end of a
// socket pair.
#pragma once

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>
#include <string>

#include "engine/clock.hpp"
#include "front/call/call.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front::test {

// Answers each call with its message. Throws as soon as it sees "throw".
class EchoMethod final : public Method {
 public:
  explicit EchoMethod(bool streams) : streams_(streams) {}
  bool client_streams() const override { return streams_; }
  void on_message(Call& call, Message&& message) override {
    ++messages;
    const std::string_view text(reinterpret_cast<const char*>(message.data()), message.size());
    if (text == "throw") throw std::bad_alloc();
    if (streams_) return call.message_done();
    std::copy(text.begin(), text.end(), call.add_message(text.size()));
    call.finish();
  }
  size_t messages = 0;

 private:
  const bool streams_;
};

class EchoApplication final : public Application {
 public:
  Method* find(std::string_view path) override { return path == "/s" ? &stream : &unary; }
  EchoMethod unary{false}, stream{true};
};

inline std::string frame(int type, int flags, int stream, const std::string& payload) {
  std::string bytes(9, '\0');
  for (int i = 0; i < 3; ++i) bytes[i] = static_cast<char>(payload.size() >> (16 - 8 * i));
  bytes[3] = static_cast<char>(type);
  bytes[4] = static_cast<char>(flags);
  for (int i = 0; i < 4; ++i) bytes[5 + i] = static_cast<char>(stream >> (24 - 8 * i));
  return bytes + payload;
}

inline std::string literal(const std::string& name, const std::string& value, bool indexed = false) {
  const auto text = [](const std::string& s) {  // without Huffman
    std::string size;
    if (s.size() < 127) return std::string(1, static_cast<char>(s.size())) + s;
    size.push_back(127);
    size_t rest = s.size() - 127;
    for (; rest >= 128; rest >>= 7) size.push_back(static_cast<char>(128 | (rest & 127)));
    size.push_back(static_cast<char>(rest));
    return size + s;
  };
  return std::string(1, indexed ? '\x40' : '\0') + text(name) + text(value);
}

inline std::string request_fields(const std::string& path, const std::string& encoding = "identity") {
  return literal(":method", "POST") + literal(":authority", "test") + literal(":scheme", "http") +
         literal(":path", path) + literal("content-type", "application/grpc") + literal("te", "trailers") +
         literal("grpc-encoding", encoding);
}

inline std::string framed(const std::string& body, bool compressed = false) {
  std::string bytes(5, '\0');
  bytes[0] = compressed ? 1 : 0;
  for (int i = 0; i < 4; ++i) bytes[1 + i] = static_cast<char>(body.size() >> (24 - 8 * i));
  return bytes + body;
}

inline constexpr int kEndStream = 1, kEndHeaders = 4;

struct Rig {
  Budgets budgets;
  Loop loop;
  EchoApplication* application;
  SteadyClock clock;
  int64_t longest_ns = 0;

  explicit Rig(const Limits& limits = {}, const Clock& clock = steady_clock())
      : budgets(limits),
        loop(
            limits, budgets, 1, nullptr, [] {}, clock) {
    auto made = std::make_unique<EchoApplication>();
    application = made.get();
    loop.serve_here(std::move(made));
  }
  void turn() {
    const int64_t begin = clock.thread_cpu();
    loop.round(0);
    longest_ns = std::max(longest_ns, clock.thread_cpu() - begin);
  }
  uint64_t ended(End why) { return loop.stats().ended[static_cast<size_t>(why)].load(); }
};

// A peer, at the other end of a socket pair.
struct TestPeer {
  explicit TestPeer(Rig& rig) : rig(rig) {
    int fds[2];
    CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    fd = fds[1];
    rig.loop.adopt(fds[0]);
    send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, ""));
    for (int i = 0; i < 2; ++i) rig.turn();
    send(frame(4, 1, 0, ""));  // SETTINGS are acknowledged: large frames are allowed
  }
  ~TestPeer() {
    ::close(fd);
    for (int i = 0; i < 3; ++i) rig.turn();
  }
  // All of it, with as many rounds in between as that takes.
  void send(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n > 0) {
        sent += static_cast<size_t>(n);
      } else if (errno == EAGAIN) {
        read();
        rig.turn();
      } else {
        return;  // closed on us
      }
    }
  }
  void read() {
    char bytes[1 << 16];
    for (ssize_t n; (n = ::read(fd, bytes, sizeof bytes)) > 0;)
      received.append(bytes, static_cast<size_t>(n));
  }
  bool was_told(End why) {
    read();
    return received.find(words(why).reason) != std::string::npos;
  }
  int fd;
  Rig& rig;
  std::string received;
};

}  // namespace fused_mlp::front::test
