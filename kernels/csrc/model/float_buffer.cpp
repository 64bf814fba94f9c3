// SPDX-License-Identifier: Apache-2.0
#include "model/float_buffer.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace fused_mlp {

namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

#if defined(__linux__)
// Maps new pages: memory recycled by the allocator is backed by small pages already.
void* map_huge(std::size_t bytes) {
  const std::size_t total = bytes + kHugePage;
  void* block = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) throw std::bad_alloc();
  // Unmap the parts before the first and after the last whole huge page.
  auto* const start = static_cast<char*>(block);
  const std::size_t before =
      round_up(reinterpret_cast<std::uintptr_t>(start), kHugePage) - reinterpret_cast<std::uintptr_t>(start);
  if (before > 0) (void)munmap(start, before);
  (void)munmap(start + before + bytes, kHugePage - before);
  (void)madvise(start + before, bytes, MADV_HUGEPAGE);  // if refused, small pages work as well
  return start + before;
}
#endif

}  // namespace

FloatBuffer::FloatBuffer(std::size_t floats) : size_(floats) {
  if (floats == 0) return;
  if (floats > (static_cast<std::size_t>(-1) - 2 * kHugePage) / sizeof(float)) throw std::bad_alloc();
  const std::size_t wanted = floats * sizeof(float);
#if defined(__linux__)
  if (wanted >= kHugePage) {
    mapped_ = round_up(wanted, kHugePage);
    data_ = static_cast<float*>(map_huge(mapped_));
    return;
  }
#endif
  const std::size_t bytes = round_up(wanted, kCacheLine);
  void* block = std::aligned_alloc(kCacheLine, bytes);
  if (block == nullptr) throw std::bad_alloc();
  std::memset(block, 0, bytes);
  data_ = static_cast<float*>(block);
}

FloatBuffer::~FloatBuffer() {
#if defined(__linux__)
  if (mapped_ > 0) {
    (void)munmap(data_, mapped_);
    return;
  }
#endif
  std::free(data_);
}

FloatBuffer::FloatBuffer(FloatBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)) {}

FloatBuffer& FloatBuffer::operator=(FloatBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

}  // namespace fused_mlp
