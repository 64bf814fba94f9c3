// SPDX-License-Identifier: Apache-2.0
// Selecting a share of requests or batches, in one of two ways: by the hash of a key, so that equal keys get
// equal decisions, or by a running sum, so that the share is exact. No locks, no allocation.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace fused_mlp {

// XXH64 with seed 0: available in most languages, so that clients can compute the decision for a key.
std::uint64_t hash_key(std::string_view key) noexcept;

// A fraction from 0 to 1 as a 64-bit fixed-point number.
class Share {
 public:
  constexpr Share() noexcept = default;
  // Throws std::invalid_argument unless 0 <= fraction <= 1.
  explicit Share(double fraction);

  constexpr bool none() const noexcept { return bits_ == 0; }
  double fraction() const noexcept;

  // A hash that is in a share is in every larger one: raising a share never takes a key out of it.
  constexpr bool contains(std::uint64_t hash) const noexcept { return bits_ == kAll || hash < bits_; }

 private:
  friend class ShareSampler;
  friend class AtomicShare;
  static constexpr std::uint64_t kAll = ~std::uint64_t{0};
  std::uint64_t bits_ = 0;
};

// Selects without a key: each call adds the share to an accumulator, and a call that overflows it is
// selected. Of any N consecutive calls, N times the share are selected, plus or minus one, evenly spaced.
class alignas(64) ShareSampler {
 public:
  bool sample(Share share) noexcept {
    const std::uint64_t before = accumulator_.fetch_add(share.bits_, std::memory_order_relaxed);
    return share.bits_ == Share::kAll || before + share.bits_ < before;
  }

 private:
  std::atomic<std::uint64_t> accumulator_{0};
};

// A share that one thread may change while others read it.
class AtomicShare {
 public:
  Share load() const noexcept {
    Share share;
    share.bits_ = bits_.load(std::memory_order_relaxed);
    return share;
  }
  void store(Share share) noexcept { bits_.store(share.bits_, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> bits_{0};
};

}  // namespace fused_mlp
