// SPDX-License-Identifier: Apache-2.0
// The timers of a connection and its calls: stalled output, the age of what was read, silence and age. Plain
// data of the loop's thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "front/http2/end.hpp"
#include "front/limits.hpp"

namespace fused_mlp::front {

// Times a peer that does not take its answers. It restarts only when the peer took all, or at least
// kProgressBytes, of what waits for it: a byte now and then is no progress.
class StallTimer {
 public:
  static constexpr size_t kProgressBytes = 16u << 10;

  void start(int64_t now_ns) {
    if (since_ns_ == 0) since_ns_ = now_ns;
  }
  void on_taken(size_t bytes, bool all, int64_t now_ns) {
    taken_ += bytes;
    if (!all && taken_ < kProgressBytes) return;
    since_ns_ = all ? 0 : now_ns;
    taken_ = 0;
  }
  int64_t since_ns() const { return since_ns_; }  // 0: nothing waits

 private:
  int64_t since_ns_ = 0;
  size_t taken_ = 0;
};

// Since when a peer can have sent what is read now: after a ping of ours that it has answered. A call that
// came after that answer and is reset before half of its timeout has passed has not missed its deadline,
// however long it lay in the network or in a socket buffer. One per connection.
class SendTime {
 public:
  static constexpr uint8_t kPing[] = {'s', 'e', 'n', 't', 'w', 'h', 'e', 'n'};
  static bool is_answer(const uint8_t* opaque) { return std::equal(kPing, kPing + sizeof kPing, opaque); }

  // Bytes that are read now were sent after this time; 0: unknown.
  int64_t known_ns() const { return known_ns_; }
  bool ping_due(int64_t now_ns) const { return asked_ns_ == 0 && now_ns - known_ns_ >= kInterval; }
  // `timer_ns`: without the time in which the loop was stuck.
  void on_ping_sent(int64_t now_ns, int64_t timer_ns) {
    asked_ns_ = now_ns;
    unanswered_since_ns_ = heard_ns_ = timer_ns;
  }
  void on_ping_answered() {
    if (asked_ns_ != 0) known_ns_ = std::exchange(asked_ns_, 0);
  }
  // A network that was down for long delivers at once what was sent meanwhile: the answer may be on its way.
  void on_bytes(int64_t timer_ns) {
    if (timer_ns - heard_ns_ > kGap) unanswered_since_ns_ = timer_ns;
    heard_ns_ = timer_ns;
  }
  // The peer keeps sending and does not answer.
  bool refuses(double timeout_s, int64_t timer_ns) const {
    return asked_ns_ != 0 && elapsed(unanswered_since_ns_, timeout_s, timer_ns);
  }

 private:
  static constexpr int64_t kInterval = 50'000'000;
  static constexpr int64_t kGap = 1'000'000'000;
  int64_t asked_ns_ = 0;  // 0: no ping is unanswered
  int64_t known_ns_ = 0;
  int64_t unanswered_since_ns_ = 0, heard_ns_ = 0;
};

// When a connection is closed, pinged or drained for its age or its silence.
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
