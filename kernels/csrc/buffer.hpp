// Cache-line aligned float storage; large blocks ask for huge pages, because weights are streamed whole
// and a page walk every 4 KiB costs a tenth of the bandwidth.
#pragma once

#include <cstddef>

namespace fused_mlp {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t floats);  // zeroed
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  float* data() { return data_; }
  const float* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  float* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace fused_mlp
