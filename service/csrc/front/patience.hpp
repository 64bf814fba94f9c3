// How long a peer has left waiting what we have for it. The clock starts again only when it took a fair part
// of it: a byte now and then is not progress. Plain data of one thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fused_mlp::front {

class Patience {
 public:
  static constexpr size_t kFairPart = 16u << 10;

  // Something waits, from now on at the latest.
  void wait(int64_t now_ns) {
    if (since_ns_ == 0) since_ns_ = now_ns;
  }
  void took(size_t bytes, bool all, int64_t now_ns) {
    taken_ += bytes;
    if (!all && taken_ < kFairPart) return;
    since_ns_ = all ? 0 : now_ns;
    taken_ = 0;
  }
  int64_t since_ns() const { return since_ns_; }  // 0: nothing waits

 private:
  int64_t since_ns_ = 0;
  size_t taken_ = 0;
};

}  // namespace fused_mlp::front
