// SPDX-License-Identifier: Apache-2.0
// Where socket reads land. A message that arrived whole is decoded where it lies: it holds its slab until the
// batch has been gathered. One pool per loop; reference counts are plain integers, touched by the loop thread
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "front/memory/account.hpp"

namespace fused_mlp::front {

struct Slab {
  // Room for several full reads: while messages of one read are held, the next read goes behind them.
  static constexpr size_t kBytes = 256u << 10;
  uint32_t refs = 0;
  std::unique_ptr<uint8_t[]> bytes{new uint8_t[kBytes]};
};

class SlabPool;

// Keeps a slab from being written over.
class SlabRef {
 public:
  SlabRef() = default;
  SlabRef(SlabPool* pool, Slab* slab) : pool_(pool), slab_(slab) { ++slab_->refs; }
  SlabRef(SlabRef&& other) noexcept { swap(other); }
  SlabRef& operator=(SlabRef&& other) noexcept {
    swap(other);
    return *this;
  }
  ~SlabRef() { release(); }
  void release() {
    if (slab_ != nullptr) drop();
  }

 private:
  inline void drop();
  void swap(SlabRef& other) {
    std::swap(pool_, other.pool_);
    std::swap(slab_, other.slab_);
  }
  SlabPool* pool_ = nullptr;
  Slab* slab_ = nullptr;
};

class SlabPool {
 public:
  static constexpr size_t kMinRead = 16u << 10;
  static constexpr size_t kMaxRead = 128u << 10;

  // The first kKept slabs belong to the loop; more are charged to `account`.
  explicit SlabPool(Account& account) : account_(account), current_(fresh()) { free_.reserve(kKept); }
  ~SlabPool() {
    delete current_;
    for (Slab* slab : free_) delete slab;
  }
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  uint8_t* place() {
    if (current_->refs == 0) {
      used_ = 0;
    } else if (Slab::kBytes - used_ < kMinRead) {
      current_ = fresh();  // the old one returns through the last SlabRef
      used_ = 0;
    }
    return current_->bytes.get() + used_;
  }
  size_t room() const { return Slab::kBytes - used_ < kMaxRead ? Slab::kBytes - used_ : kMaxRead; }
  void commit(size_t n) { used_ += n; }
  SlabRef hold() { return SlabRef(this, current_); }
  // So many slabs are held that messages are better copied: a small message can hold a whole slab.
  bool crowded() const { return live_ > kMaxHeld || (live_ > kKept && account_.left_lately() == 0); }
  void give_back(Slab* slab) noexcept {
    if (slab == current_) return;
    if (live_ <= kKept) {
      free_.push_back(slab);
    } else {
      delete slab;
      --live_;
      charge();
    }
  }

 private:
  static constexpr size_t kKept = 8;
  static constexpr size_t kMaxHeld = 64;
  Slab* fresh() {
    if (free_.empty()) {
      auto* slab = new Slab;
      ++live_;
      charge();
      return slab;
    }
    Slab* slab = free_.back();
    free_.pop_back();
    return slab;
  }

  void charge() {
    charge_.resize_anyway(account_, live_ > kKept ? (live_ - kKept) * (sizeof(Slab) + Slab::kBytes) : 0);
  }

  Account& account_;
  Charge<Account> charge_;
  std::vector<Slab*> free_;
  size_t live_ = 0;
  Slab* current_;
  size_t used_ = 0;
};

inline void SlabRef::drop() {
  if (--slab_->refs == 0) pool_->give_back(slab_);
  slab_ = nullptr;
}

}  // namespace fused_mlp::front
