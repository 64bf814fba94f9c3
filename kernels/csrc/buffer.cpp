#include "buffer.hpp"

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
}  // namespace

Buffer::Buffer(std::size_t floats) : size_(floats) {
  if (floats == 0) return;
  if (floats > (static_cast<std::size_t>(-1) - kHugePage) / sizeof(float)) throw std::bad_alloc();
  const std::size_t wanted = floats * sizeof(float);
  const std::size_t alignment = wanted >= kHugePage ? kHugePage : kCacheLine;
  const std::size_t bytes = (wanted + alignment - 1) / alignment * alignment;
  void* block = std::aligned_alloc(alignment, bytes);
  if (block == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  // Before the first touch. Advice only: where it is refused, small pages serve.
  if (alignment == kHugePage) (void)madvise(block, bytes, MADV_HUGEPAGE);
#endif
  std::memset(block, 0, bytes);
  data_ = static_cast<float*>(block);
}

Buffer::~Buffer() { std::free(data_); }

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace fused_mlp
