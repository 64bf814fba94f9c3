// SPDX-License-Identifier: Apache-2.0
// Send-stall timer. It restarts only when the peer took all, or at least kProgressBytes, of what waits for
// it: a byte now and then is no progress. Plain data of one thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fused_mlp::front {

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

}  // namespace fused_mlp::front
