// What a loop counts about its connections. Written by the loop, read by anyone: relaxed atomics.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace fused_mlp::front {

// Why a connection ended, or was never begun.
enum class End : uint8_t {
  peer,         // the peer closed, or the network failed
  done,         // drained
  handshake,    // no TLS, or no HTTP/2 within the time
  protocol,     // broken HTTP/2
  flood,        // resets, pings, settings, control frames
  slow_reader,  // did not take its answers
  keepalive,    // did not answer a ping
  idle,
  refused,  // too many connections
  stopped,  // the server was
};
inline constexpr int kEndCount = static_cast<int>(End::stopped) + 1;
inline constexpr std::array<const char*, kEndCount> kEndNames = {
    "peer",        "done",      "handshake", "protocol", "flood",
    "slow_reader", "keepalive", "idle",      "refused",  "stopped"};

struct Stats {
  std::atomic<uint64_t> accepted{0};
  std::atomic<uint64_t> connections{0};  // gauge
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> open_calls{0};  // gauge
  std::array<std::atomic<uint64_t>, kEndCount> ended{};

  void count_end(End end) { ended[static_cast<size_t>(end)].fetch_add(1, std::memory_order_relaxed); }
};

// Only the loop writes, so a plain load and store will do where fetch_add would lock the bus.
inline void bump(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

}  // namespace fused_mlp::front
