// SPDX-License-Identifier: Apache-2.0
// A run of bytes that grows at the end and is consumed at the front. It keeps its memory when emptied, so
// that pooled owners stop allocating. Owned by one thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace fused_mlp {

class ByteBuffer {
 public:
  ByteBuffer() = default;
  ByteBuffer(ByteBuffer&& other) noexcept { swap(other); }
  ByteBuffer& operator=(ByteBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ByteBuffer(const ByteBuffer&) = delete;
  ByteBuffer& operator=(const ByteBuffer&) = delete;
  ~ByteBuffer() { std::free(data_); }

  const uint8_t* data() const { return data_ + begin_; }
  uint8_t* data() { return data_ + begin_; }
  size_t size() const { return end_ - begin_; }
  size_t capacity() const { return capacity_; }
  size_t room() const { return capacity_ - end_; }  // for bytes at the end, without growing
  bool empty() const { return begin_ == end_; }

  // n bytes at the end, for the caller to write; counted as content at once.
  uint8_t* extend(size_t n) {
    if (capacity_ - end_ < n) make_room(n);
    uint8_t* place = data_ + end_;
    end_ += n;
    return place;
  }
  void append(const void* bytes, size_t n) {
    if (n != 0) std::memcpy(extend(n), bytes, n);
  }
  void consume(size_t n) {
    begin_ += n;
    if (begin_ == end_) begin_ = end_ = 0;
  }
  void drop_back(size_t n) { end_ -= n; }
  void clear() { begin_ = end_ = 0; }
  // Empty it, and give the memory back when it is more than `keep`.
  void reset(size_t keep) {
    clear();
    if (capacity_ > keep) {
      std::free(data_);
      data_ = nullptr;
      capacity_ = 0;
    }
  }
  // Room for `total` bytes of content, and no more where it has to grow.
  void reserve(size_t total) {
    if (capacity_ - begin_ < total) move_to(std::max(total, capacity_));
  }
  // Gives memory back when most of it is not used.
  void shrink() {
    if (size() < capacity_ / 4) move_to(std::max<size_t>(size(), 1));
  }
  void swap(ByteBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(begin_, other.begin_);
    std::swap(end_, other.end_);
    std::swap(capacity_, other.capacity_);
  }

 private:
  void make_room(size_t n) {
    const size_t used = size();
    const bool fits = begin_ != 0 && capacity_ - used >= n && used <= capacity_ / 2;
    move_to(fits ? capacity_ : std::max({size_t{256}, capacity_ * 2, used + n}));
  }
  // The content goes to the start of the buffer, or of a larger one.
  void move_to(size_t capacity) {
    const size_t used = size();
    if (capacity == capacity_) {
      std::memmove(data_, data_ + begin_, used);
    } else {
      // realloc moves pages instead of bytes when there are many, but it would also move what was consumed.
      auto* grown =
          static_cast<uint8_t*>(begin_ == 0 ? std::realloc(data_, capacity) : std::malloc(capacity));
      if (grown == nullptr) throw std::bad_alloc();
      if (begin_ != 0) {
        if (used != 0) std::memcpy(grown, data_ + begin_, used);
        std::free(data_);
      }
      data_ = grown;
      capacity_ = capacity;
    }
    begin_ = 0;
    end_ = used;
  }

  uint8_t* data_ = nullptr;
  size_t begin_ = 0, end_ = 0, capacity_ = 0;
};

}  // namespace fused_mlp
