// SPDX-License-Identifier: Apache-2.0
#include "work.hpp"

#include <cstring>

namespace fake_cuda {

Work copy(std::uint64_t device, const void* host, std::size_t bytes, bool in) {
  Memory& memory = fake().memory;
  const std::size_t on_device = memory.offset_of_device(device), on_host = memory.offset_of_host(host);
  const auto usable = [=, &memory] {
    return memory.holds(on_device, bytes) && memory.holds(on_host, bytes, /*host_only=*/true);
  };
  if (!usable()) return {};
  return [=, &memory] {
    if (!usable()) return static_cast<int>(kIllegalAddress);
    std::uint8_t* const a = memory.host_address(in ? on_device : on_host);
    std::memcpy(a, memory.host_address(in ? on_host : on_device), bytes);
    return static_cast<int>(kSuccess);
  };
}

int enqueue(Stream* stream, Work work) {
  if (!work) return kInvalidValue;
  stream->enqueue(std::move(work));
  return kSuccess;
}

int prepare(Function* function, const KernelNodeParameters& given, Work& work) {
  if (!fake().functions.has(function)) return kInvalidHandle;
  if (function->module->context != current_context()) return kInvalidContext;
  const std::uint64_t threads = std::uint64_t{given.block_x} * given.block_y * given.block_z;
  if (given.grid_x == 0 || given.grid_y == 0 || given.grid_z == 0 || threads == 0 || threads > 1024 ||
      given.extra != nullptr || given.shared_bytes > function->max_shared_bytes) {
    return kInvalidValue;
  }
  Launch launch{function->module->number,
                function->entry,
                {given.grid_x, given.grid_y, given.grid_z},
                {given.block_x, given.block_y, given.block_z},
                given.shared_bytes,
                {}};
  for (std::size_t i = 0; i < function->entry.parameters.size(); ++i) {
    std::uint64_t value = 0;
    std::memcpy(&value, given.parameters[i], function->entry.parameters[i]);
    launch.parameters.push_back(value);
  }
  work = [launch = std::move(launch)] {
    if (const int code = fake().failure_of("kernel")) return code;
    return fake().executor.run(launch);
  };
  return kSuccess;
}

}  // namespace fake_cuda
