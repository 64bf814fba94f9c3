// SPDX-License-Identifier: Apache-2.0
#include "engine/run/kernel.hpp"

#include <sys/mman.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>

#include "engine/run/busy_threads.hpp"

namespace fused_mlp {

namespace {
constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector register
constexpr std::size_t kErrorBytes = 512;
constexpr std::size_t kMapped = std::size_t{1} << 20;

// Large ones are mapped: the allocator would keep them when they are freed.
std::shared_ptr<float> allocate(std::size_t bytes) {
  if (bytes < kMapped) {
    void* const memory = std::aligned_alloc(kAlignment, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return {static_cast<float*>(memory), std::free};
  }
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return {static_cast<float*>(memory), [bytes](float* mapped) { munmap(mapped, bytes); }};
}

}  // namespace

float* BatchBuffer::reserve(std::size_t floats) {
  if (floats > capacity_) {
    release();  // before allocating, so that both arrays never exist at once
    const std::size_t bytes = (floats * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
    data_ = allocate(bytes);
    capacity_ = bytes / sizeof(float);
  }
  return data_.get();
}

namespace {

// The outcome of a call, of which the kernel has told in `error`.
void judge(int code, std::array<char, kErrorBytes>& error, KernelResult& result) noexcept {
  if (code == 0) return;
  error.back() = '\0';
  std::array<char, kErrorBytes + 32> text{};
  std::snprintf(text.data(), text.size(), "%s (code %d)", error.data(), code);
  result.fail(text.data());
}

}  // namespace

void CapsuleKernel::run(const BatchBuffer& x, std::size_t first, std::size_t rows, const BatchBuffer& y,
                        KernelResult& result) noexcept {
  std::array<char, kErrorBytes> error{};
  const unsigned busy = other_busy_threads();
  std::optional<WaitingScope> waiting;
  if (needs_worker()) waiting.emplace();
  const int code =
      kernel_->run(kernel_->ctx, x.data().get() + first * kernel_->in_features, rows,
                   y.data().get() + first * kernel_->out_features, busy, error.data(), error.size());
  waiting.reset();
  judge(code, error, result);
  if (code == 0) result.strategy = kernel_->strategy(kernel_->ctx, rows);
}

void CapsuleKernel::run_groups(std::span<const fused_mlp_words> shared,
                               std::span<const fused_mlp_group> groups, float* y,
                               KernelResult& result) noexcept {
  std::array<char, kErrorBytes> error{};
  std::size_t rows = 0;
  for (const fused_mlp_group& group : groups) rows += group.rows;
  const int code = kernel_->run_groups(kernel_->ctx, shared.data(), shared.size(), groups.data(),
                                       groups.size(), y, other_busy_threads(), error.data(), error.size());
  judge(code, error, result);
  if (code == 0) result.strategy = kernel_->strategy(kernel_->ctx, rows);
}

PlacedBatch CapsuleKernel::begin(std::size_t rows) noexcept {
  PlacedBatch batch;
  if (kernel_->steps != nullptr) batch.place = kernel_->steps->begin(kernel_->ctx, rows, &batch.x);
  return batch;
}

void CapsuleKernel::start(PlacedBatch& batch, KernelResult& result) noexcept {
  std::array<char, kErrorBytes> error{};
  judge(kernel_->steps->start(kernel_->ctx, batch.place, error.data(), error.size()), error, result);
}

void CapsuleKernel::finish(PlacedBatch& batch, std::size_t rows, KernelResult& result) noexcept {
  std::array<char, kErrorBytes> error{};
  const unsigned busy = other_busy_threads();
  int code = 0;
  {
    const WaitingScope waiting;
    code = kernel_->steps->finish(kernel_->ctx, batch.place, busy, &batch.y, error.data(), error.size());
  }
  judge(code, error, result);
  if (code == 0) result.strategy = kernel_->strategy(kernel_->ctx, rows);
}

}  // namespace fused_mlp
