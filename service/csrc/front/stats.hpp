// SPDX-License-Identifier: Apache-2.0
// Counters of a loop about its connections, for /metrics. Written by the loop's thread, read by any: relaxed
// atomics.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "engine/status.hpp"
#include "front/http2/end.hpp"

namespace fused_mlp::front {

struct Stats {
  std::atomic<uint64_t> accepted{0};
  std::atomic<uint64_t> connections{0};  // gauge
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> open_calls{0};                     // gauge
  std::atomic<uint64_t> received_bytes{0}, sent_bytes{0};  // of HTTP/2, before TLS
  std::atomic<uint64_t> received_resets{0}, sent_resets{0};
  std::array<std::atomic<uint64_t>, kGrpcCodeCount> refused{};  // calls that the front ended itself, by code
  std::array<std::atomic<uint64_t>, kEndCount> ended{};
  std::array<std::atomic<uint64_t>, kShortageCount> shortages{};  // calls refused for lack of memory
  std::atomic<uint64_t> failures{0};        // exceptions of ours: each ended a call or a connection
  std::atomic<uint64_t> tls_handshakes{0};  // successful
  std::array<std::atomic<uint64_t>, kTlsFailureCount> tls_failures{};

  void count_end(End end) { ended[static_cast<size_t>(end)].fetch_add(1, std::memory_order_relaxed); }
};

// Only the loop writes, so a load and a store suffice: fetch_add would lock the bus.
inline void bump(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

}  // namespace fused_mlp::front
