// SPDX-License-Identifier: Apache-2.0
// When a connection is closed, pinged or drained for its age or its silence. Loop thread only.
#pragma once

#include <cstdint>
#include <optional>

#include "front/limits.hpp"
#include "front/stats.hpp"

namespace fused_mlp::front {

class ConnectionTimers {
 public:
  // `spread` varies the age limit by a tenth, so that clients that connected at once do not reconnect at
  // once.
  ConnectionTimers(const Limits& limits, int64_t now_ns, int spread)
      : limits_(limits),
        max_age_s_(limits.max_connection_age_s * (0.9 + 0.2 * static_cast<double>(spread % 16) / 15)),
        born_ns_(now_ns),
        heard_ns_(now_ns),
        idle_since_ns_(now_ns) {}

  void on_settings() { shaking_hands_ = false; }
  void on_bytes(int64_t now_ns) {
    heard_ns_ = now_ns;
    pinged_ns_ = 0;
  }
  void on_ping_sent(int64_t now_ns) { pinged_ns_ = now_ns; }
  void on_last_call_ended(int64_t now_ns) { idle_since_ns_ = now_ns; }

  // Why it must be closed now, if it must. `output_stalled_since_ns`: 0 if the socket takes what is sent.
  std::optional<End> expired(int64_t output_stalled_since_ns, int64_t now_ns) const {
    if (shaking_hands_ && elapsed(born_ns_, limits_.handshake_timeout_s, now_ns)) return End::handshake;
    if (elapsed(output_stalled_since_ns, limits_.send_timeout_s, now_ns)) return End::slow_reader;
    if (elapsed(pinged_ns_, limits_.keepalive_timeout_s, now_ns)) return End::keepalive;
    return std::nullopt;
  }
  bool silent(double limit_s, int64_t now_ns) const { return elapsed(heard_ns_, limit_s, now_ns); }
  bool ping_due(int64_t now_ns) const {
    return pinged_ns_ == 0 && elapsed(heard_ns_, limits_.keepalive_s, now_ns);
  }
  // Why it must be drained now, in words for the peer; null: it need not.
  const char* drain_due(bool has_calls, int64_t now_ns) const {
    if (!has_calls && elapsed(idle_since_ns_, limits_.idle_timeout_s, now_ns))
      return "no calls for idle_timeout_s";
    return elapsed(born_ns_, max_age_s_, now_ns) ? "older than max_connection_age_s" : nullptr;
  }

 private:
  const Limits& limits_;
  const double max_age_s_;
  const int64_t born_ns_;
  int64_t heard_ns_;       // last byte from the peer
  int64_t pinged_ns_ = 0;  // keepalive; 0: no ping is unanswered
  int64_t idle_since_ns_;  // without calls
  bool shaking_hands_ = true;
};

}  // namespace fused_mlp::front
