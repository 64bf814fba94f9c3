// SPDX-License-Identifier: Apache-2.0
// Since when a peer can have sent what is read now: after a ping of ours that it has answered. A call that
// came after that answer and is reset before half of its timeout has passed has not missed its deadline,
// however long it lay in the network or in a socket buffer. One per connection. Loop thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "front/limits.hpp"

namespace fused_mlp::front {

class SendTime {
 public:
  static constexpr uint8_t kPing[] = {'s', 'e', 'n', 't', 'w', 'h', 'e', 'n'};
  static bool is_answer(const uint8_t* opaque) { return std::equal(kPing, kPing + sizeof kPing, opaque); }

  // What is read now was sent after this time; 0: unknown.
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

}  // namespace fused_mlp::front
