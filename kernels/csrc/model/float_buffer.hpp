// SPDX-License-Identifier: Apache-2.0
// Cache-line aligned float storage. Large blocks use huge pages: weights are read sequentially, and a page
// walk every 4 KiB costs up to a third of the bandwidth.
#pragma once

#include <cstddef>

namespace fused_mlp {

class FloatBuffer {
 public:
  FloatBuffer() = default;
  explicit FloatBuffer(std::size_t floats);  // zeroed
  ~FloatBuffer();
  FloatBuffer(FloatBuffer&& other) noexcept;
  FloatBuffer& operator=(FloatBuffer&& other) noexcept;
  FloatBuffer(const FloatBuffer&) = delete;
  FloatBuffer& operator=(const FloatBuffer&) = delete;

  float* data() { return data_; }
  const float* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  float* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t mapped_ = 0;  // bytes, if the block was allocated by mmap
};

}  // namespace fused_mlp
