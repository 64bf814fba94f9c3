// SPDX-License-Identifier: Apache-2.0
// The memory of a loop's nghttp2 sessions. A request makes nghttp2 allocate and free the same few small
// blocks, for which malloc takes its slow path as soon as more than a handful of requests are open; here a
// freed block waits in a list for the next one of its size. Loop thread only.
#pragma once

#include <nghttp2/nghttp2.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace fused_mlp::front {

class SessionMemory {
 public:
#ifdef FUSED_MLP_SANITIZED
  static constexpr size_t kKeptBytes = 0;  // a sanitizer must see what is used after it was freed
#else
  static constexpr size_t kKeptBytes = 512u << 10;  // of some 500 requests
#endif

  explicit SessionMemory(size_t max_kept_bytes = kKeptBytes) : max_kept_bytes_(max_kept_bytes) {}
  ~SessionMemory() {
    for (Block* block : free_) {
      while (block != nullptr) std::free(std::exchange(block, block->next));
    }
  }
  SessionMemory(const SessionMemory&) = delete;
  SessionMemory& operator=(const SessionMemory&) = delete;

  // For a session, which must not outlive this.
  nghttp2_mem functions() {
    return {this, [](size_t size, void* self) { return memory(self).allocate(size); },
            [](void* bytes, void* self) { memory(self).release(bytes); },
            [](size_t count, size_t size, void* self) { return memory(self).allocate_zeros(count, size); },
            [](void* bytes, size_t size, void* self) { return memory(self).resize(bytes, size); }};
  }

  // As malloc, free, calloc and realloc.
  void* allocate(size_t size) noexcept {
    if (size > kLargestKept) return allocate_new(size);
    const size_t list = (size + sizeof(Block) + kStep - 1) / kStep;
    if (free_[list] == nullptr) return allocate_new(size);
    Block* block = free_[list];
    free_[list] = block->next;
    kept_bytes_ -= block->bytes;
    return block + 1;
  }
  void release(void* bytes) noexcept {
    if (bytes == nullptr) return;
    Block* block = static_cast<Block*>(bytes) - 1;
    if (block->bytes >= kLists * kStep || kept_bytes_ + block->bytes > max_kept_bytes_)
      return std::free(block);
    kept_bytes_ += block->bytes;
    block->next = free_[block->bytes / kStep];
    free_[block->bytes / kStep] = block;
  }
  void* allocate_zeros(size_t count, size_t size) noexcept {
    if (size != 0 && count > SIZE_MAX / size) return nullptr;
    void* bytes = allocate(count * size);
    if (bytes != nullptr) std::memset(bytes, 0, count * size);
    return bytes;
  }
  void* resize(void* bytes, size_t size) noexcept {
    if (bytes == nullptr) return allocate(size);
    const size_t room = (static_cast<Block*>(bytes) - 1)->bytes - sizeof(Block);
    if (size <= room) return bytes;
    void* grown = allocate(size);
    if (grown == nullptr) return nullptr;
    std::memcpy(grown, bytes, room);
    release(bytes);
    return grown;
  }
  size_t kept_bytes() const { return kept_bytes_; }

 private:
  struct alignas(std::max_align_t) Block {  // what was asked for follows it
    size_t bytes;                           // of all, a multiple of kStep
    Block* next;                            // while it is free
  };
  static constexpr size_t kStep = 32;
  static constexpr size_t kLists = 33;  // blocks of up to 1 KiB
  static constexpr size_t kLargestKept = (kLists - 1) * kStep - sizeof(Block);

  static SessionMemory& memory(void* self) { return *static_cast<SessionMemory*>(self); }
  static void* allocate_new(size_t size) noexcept {
    if (size > SIZE_MAX - sizeof(Block) - kStep) return nullptr;
    const size_t bytes = (size + sizeof(Block) + kStep - 1) / kStep * kStep;
    auto* block = static_cast<Block*>(std::malloc(bytes));
    if (block == nullptr) return nullptr;
    block->bytes = bytes;
    return block + 1;
  }

  const size_t max_kept_bytes_;
  size_t kept_bytes_ = 0;
  std::array<Block*, kLists> free_{};  // by bytes / kStep
};

}  // namespace fused_mlp::front
