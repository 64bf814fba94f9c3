#include "engine/kernel.hpp"

#include <array>
#include <cstdlib>
#include <new>

#include "engine/busy_threads.hpp"

namespace fused_mlp {

namespace {
constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector register
constexpr std::size_t kErrorBytes = 512;
}  // namespace

float* BatchBuffer::reserve(std::size_t floats) {
  if (floats > capacity_) {
    const std::size_t bytes = (floats * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
    capacity_ = 0;
    data_.reset();  // before allocating, so that both arrays never exist at once
    void* memory = std::aligned_alloc(kAlignment, bytes);
    if (!memory) throw std::bad_alloc();
    data_ = std::shared_ptr<float>(static_cast<float*>(memory), std::free);
    capacity_ = bytes / sizeof(float);
  }
  return data_.get();
}

void CapsuleKernel::run(const BatchBuffer& x, std::size_t first, std::size_t rows, const BatchBuffer& y,
                        KernelResult& result) noexcept {
  std::array<char, kErrorBytes> error{};
  const int code = kernel_->run(kernel_->ctx, x.data().get() + first * kernel_->in_features, rows,
                                y.data().get() + first * kernel_->out_features, other_busy_threads(),
                                error.data(), error.size());
  if (code == 0) {
    result.strategy = kernel_->strategy(kernel_->ctx, rows);
  } else {
    result.failed = true;
    error.back() = '\0';
    result.error = std::string(error.data()) + " (code " + std::to_string(code) + ")";
  }
}

}  // namespace fused_mlp
