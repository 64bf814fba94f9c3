// SPDX-License-Identifier: Apache-2.0
// Back-pressure on a peer that does not take its answers. They are parked in their calls; when they reach the
// limit, its further requests are held in theirs, as bytes that are accounted for, and are not computed.
// Frames are read all the same: those that open the windows are among them. One per connection.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "front/memory/peer_account.hpp"

namespace fused_mlp::front {

class Call;

inline constexpr size_t kLeastOutput = 16u << 10;

// The most that one connection may have waiting in `account`, of its own limit: less when all together are
// short of memory, but never so little that nothing moves.
inline size_t most_output(const PeerAccount& account, size_t limit) {
  return std::min(limit,
                  std::max(kLeastOutput, account.room() / 2));  // half: it has parked and serialised bytes
}
// Whether `bytes` reach that. Mostly they are too few for the account to matter.
inline bool reaches_most_output(size_t bytes, const PeerAccount& account, size_t limit) {
  return bytes >= std::min(limit, kLeastOutput) && bytes >= most_output(account, limit);
}

class HeldRequests {
 public:
  HeldRequests(const PeerAccount& answers, size_t most_parked_bytes)
      : answers_(answers), most_parked_bytes_(most_parked_bytes) {}

  // A call's answer has grown or shrunk.
  void change_parked(size_t before, size_t after) { parked_bytes_ += after - before; }
  size_t parked_bytes() const { return parked_bytes_; }
  // The same for answers that are being computed. They count toward what all connections may have, not toward
  // max_output_bytes: a peer that reads has none of them parked.
  void change_expected(size_t before, size_t after) { expected_bytes_ += after - before; }
  size_t expected_bytes() const { return expected_bytes_; }
  bool must_hold() const {
    return reaches_most_output(parked_bytes_, answers_, most_parked_bytes_) ||
           reaches_most_output(parked_bytes_ + expected_bytes_, answers_, SIZE_MAX);
  }
  // Something waits (a request, or the window of a streaming caller) and need not wait any longer.
  bool can_continue() const { return (first_ != nullptr || windows_wait_) && !must_hold(); }

  // Calls with requests that wait, in the order they came. Each is in the list once.
  void hold(Call& call);
  void remove(Call& call);
  Call* first() const { return first_; }
  size_t count() const { return count_; }
  void hold_window() { windows_wait_ = true; }
  bool windows_wait() const { return windows_wait_; }
  void windows_opened() { windows_wait_ = false; }

 private:
  const PeerAccount& answers_;
  const size_t most_parked_bytes_;
  size_t parked_bytes_ = 0;
  size_t expected_bytes_ = 0;
  Call* first_ = nullptr;
  Call* last_ = nullptr;
  size_t count_ = 0;
  bool windows_wait_ = false;
};

}  // namespace fused_mlp::front
