// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace fake_cuda {

namespace {
constexpr std::size_t kAlignment = 512, kGap = 4096;  // as cuMemAlloc aligns; between allocations
constexpr int kPoison = 0xFF;                         // what was never written reads as NaN
}  // namespace

Memory::Memory(std::size_t bytes) : size_(bytes) {
  file_ = memfd_create("fake_cuda", MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(bytes)) != 0) std::abort();
  void* const host = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  void* const device = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file_, 0);
  if (host == MAP_FAILED || device == MAP_FAILED) std::abort();
  host_ = static_cast<std::uint8_t*>(host);
  device_ = reinterpret_cast<std::uint64_t>(device);
}

std::size_t Memory::allocate(std::size_t bytes, bool host) {
  const std::lock_guard lock(mutex_);
  std::size_t at = 0;  // first fit
  for (const auto& [offset, block] : blocks_) {
    if (offset >= at + bytes + kGap) break;
    at = (offset + block.bytes + kGap + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (bytes > size_ || at > size_ - bytes) return SIZE_MAX;
  blocks_[at] = {bytes, host};
  std::memset(host_ + at, kPoison, bytes);
  return at;
}

bool Memory::free(std::size_t offset, bool host) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(offset);
  if (found == blocks_.end() || found->second.host != host) return false;
  blocks_.erase(found);
  return true;
}

std::size_t Memory::offset_of_device(std::uint64_t address) const {
  return address >= device_ && address - device_ < size_ ? address - device_ : SIZE_MAX;
}

std::size_t Memory::offset_of_host(const void* memory) const {
  const auto* const byte = static_cast<const std::uint8_t*>(memory);
  return byte >= host_ && byte < host_ + size_ ? static_cast<std::size_t>(byte - host_) : SIZE_MAX;
}

bool Memory::holds(std::size_t offset, std::size_t bytes, bool host_only) const {
  const std::lock_guard lock(mutex_);
  auto found = blocks_.upper_bound(offset);
  if (offset == SIZE_MAX || found == blocks_.begin()) return false;
  --found;
  const std::size_t inside = offset - found->first;
  return inside <= found->second.bytes && bytes <= found->second.bytes - inside &&
         (!host_only || found->second.host);
}

std::size_t Memory::count() const {
  const std::lock_guard lock(mutex_);
  return blocks_.size();
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> Memory::allocations() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
  for (const auto& [offset, block] : blocks_) found.emplace_back(device_ + offset, block.bytes);
  return found;
}

}  // namespace fake_cuda
