// SPDX-License-Identifier: Apache-2.0
// How often something may happen in one second. A window that restarts: cheap, and exact enough for floods.
#pragma once

#include <cstdint>

namespace fused_mlp::front {

inline constexpr int64_t kSecond = 1'000'000'000;  // in nanoseconds

class Rate {
 public:
  // Counts one; false: more than `most` in this second.
  bool allow(int64_t now_ns, uint32_t most) {
    if (now_ns - since_ns_ >= kSecond) {
      since_ns_ = now_ns;
      count_ = 0;
    }
    return ++count_ <= most;
  }

 private:
  int64_t since_ns_ = 0;
  uint32_t count_ = 0;
};

}  // namespace fused_mlp::front
