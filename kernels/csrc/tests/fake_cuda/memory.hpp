// SPDX-License-Identifier: Apache-2.0
// The memory of all fake devices and what is page-locked: one shared file, mapped twice. Its addresses on the
// device cannot be touched by the host (PROT_NONE), the host's can; page-locked memory has both, and they
// differ, as the rules of CUDA allow. A second process maps the file too, and so sees the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace fake_cuda {

class Memory {
 public:
  explicit Memory(std::size_t bytes);

  // The offset of new memory, or SIZE_MAX. Allocations are kept apart, so that running over the end of one
  // hits nothing.
  std::size_t allocate(std::size_t bytes, bool host);
  bool free(std::size_t offset, bool host);

  std::uint64_t device_address(std::size_t offset) const { return device_ + offset; }
  std::uint8_t* host_address(std::size_t offset) const { return host_ + offset; }
  // The offset of an address, which need not be allocated; SIZE_MAX outside of the mapping.
  std::size_t offset_of_device(std::uint64_t address) const;
  std::size_t offset_of_host(const void* memory) const;
  // Whether all the bytes lie in one allocation: of any kind, or of the host's.
  bool holds(std::size_t offset, std::size_t bytes, bool host_only = false) const;

  std::size_t size() const { return size_; }
  std::size_t count() const;
  int file() const { return file_; }
  // (address on the device, bytes) of all that is allocated.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> allocations() const;

 private:
  struct Block {
    std::size_t bytes;
    bool host;
  };
  std::size_t size_;
  int file_;
  std::uint64_t device_;
  std::uint8_t* host_;
  mutable std::mutex mutex_;
  std::map<std::size_t, Block> blocks_;  // by offset
};

}  // namespace fake_cuda
