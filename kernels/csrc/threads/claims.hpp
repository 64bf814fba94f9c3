// SPDX-License-Identifier: Apache-2.0
// How the participants of a job share its pieces: each begins at a piece of its own, then takes over those
// that slower ones have not begun.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fused_mlp {

// Pieces of work, each of which one participant claims.
class Claims {
 public:
  static constexpr std::size_t kMost = std::size_t{15} * 64;

  // Calls f(piece) for every unclaimed one of `count` pieces, beginning with `start`.
  template <class F>
  void each(std::size_t count, std::size_t start, const F& f) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t piece = start + i < count ? start + i : start + i - count;
      std::atomic<std::uint64_t>& bits = claimed_[piece / 64];
      const std::uint64_t bit = std::uint64_t{1} << piece % 64;
      if ((bits.load(std::memory_order_relaxed) & bit) != 0) continue;
      if ((bits.fetch_or(bit, std::memory_order_relaxed) & bit) != 0) continue;
      f(piece);
    }
  }

 private:
  std::atomic<std::uint64_t> claimed_[kMost / 64] = {};
};

}  // namespace fused_mlp
