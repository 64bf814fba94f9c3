// SPDX-License-Identifier: Apache-2.0
// libcuda.so.1 for tests: the functions of it that the launcher calls, here those for devices, contexts,
// modules and memory. They check more than NVIDIA's do: every handle and address must be alive and belong to
// the current context, copies need page-locked memory and stay inside of allocations, nothing may wait or
// allocate in a capture, and waiting for the whole device breaks the captures of all threads. What only a
// real GPU has is not here: its machine code, its timing.
#include <cstdio>
#include <cstring>

#include "state.hpp"

using namespace fake_cuda;

EXPORT int cuInit(unsigned flags) {
  if (const int code = fake().failure_of("cuInit")) return code;
  fake().initialized = true;
  return flags == 0 ? kSuccess : kInvalidValue;
}

EXPORT int cuGetErrorName(int code, const char** text) {
  *text = name_of(code);
  return *text != nullptr ? kSuccess : kInvalidValue;
}

EXPORT int cuGetErrorString(int code, const char** text) {
  *text = text_of(code);
  return *text != nullptr ? kSuccess : kInvalidValue;
}

EXPORT int cuDeviceGetCount(int* count) {
  ENTER(enter("cuDeviceGetCount", Needs::kNothing));
  return *count = kDevices, kSuccess;
}

EXPORT int cuDeviceGet(int* device, int ordinal) {
  ENTER(enter("cuDeviceGet", Needs::kNothing));
  if (ordinal < 0 || ordinal >= kDevices) return kInvalidDevice;
  return *device = ordinal, kSuccess;
}

EXPORT int cuDeviceGetName(char* name, int length, int device) {
  ENTER(enter("cuDeviceGetName", Needs::kNothing));
  std::snprintf(name, static_cast<std::size_t>(length), "fake GPU %d", device);
  return kSuccess;
}

EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
  ENTER(enter("cuDeviceGetAttribute", Needs::kNothing));
  const int capability = static_cast<int>(number("FAKE_CUDA_CAPABILITY", 80));
  if (device < 0 || device >= kDevices || (attribute != 75 && attribute != 76)) return kInvalidValue;
  *value = attribute == 75 ? capability / 10 : capability % 10;
  return kSuccess;
}

EXPORT int cuDevicePrimaryCtxRetain(Context** context, int device) {
  ENTER(enter("cuDevicePrimaryCtxRetain", Needs::kNothing));
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  const std::lock_guard lock(fake().mutex);
  *context = &fake().contexts[static_cast<std::size_t>(device)];
  ++(*context)->references;
  return kSuccess;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
  ENTER(enter("cuDevicePrimaryCtxRelease_v2", Needs::kNothing));
  std::unique_ptr<Stream> ended;  // outside of the lock: it waits for its work
  const std::lock_guard lock(fake().mutex);
  Context& context = fake().contexts[static_cast<std::size_t>(device)];
  if (context.references == 0) return kInvalidContext;
  if (--context.references > 0) return kSuccess;
  context.sticky = 0;
  ended = std::move(context.null_stream);
  return kSuccess;
}

EXPORT int cuCtxPushCurrent_v2(Context* context) {
  ENTER(enter("cuCtxPushCurrent_v2", Needs::kNothing));
  if (context == nullptr) return kInvalidContext;
  push_context(context);
  return kSuccess;
}

EXPORT int cuCtxPopCurrent_v2(Context** context) {
  *context = pop_context();
  return *context != nullptr ? kSuccess : kInvalidContext;
}

EXPORT int cuModuleLoadData(Module** module, const void* image) {
  ENTER(enter_unsafe("cuModuleLoadData"));
  if (std::memcmp(image, "\177ELF", 4) == 0) return kNoBinaryForGpu;
  const std::string ptx = static_cast<const char*>(image);
  auto made = std::make_unique<Module>();
  made->context = current_context();
  made->number = fake().numbers++;
  made->entries = entries_of(ptx);
  if (ptx.find(".version") == std::string::npos || made->entries.empty()) return kInvalidImage;
  ENTER(fake().executor.load(made->number, ptx));
  *module = fake().modules.add(std::move(made));
  return kSuccess;
}

EXPORT int cuModuleUnload(Module* module) {
  ENTER(enter_unsafe("cuModuleUnload", Needs::kContext));
  ENTER(check_handle(fake().modules, module));
  const std::unique_ptr<Module> taken = fake().modules.take(module);
  for (const Function* const function : taken->functions) fake().functions.take(function);
  return kSuccess;
}

EXPORT int cuModuleGetFunction(Function** function, Module* module, const char* name) {
  ENTER(enter("cuModuleGetFunction"));
  ENTER(check_handle(fake().modules, module));
  for (const Entry& entry : module->entries) {
    if (entry.name != name || !fake().executor.knows(name)) continue;
    *function = fake().functions.add(std::make_unique<Function>(Function{module, entry}));
    module->functions.push_back(*function);
    return kSuccess;
  }
  return kNotFound;
}

EXPORT int cuFuncSetAttribute(Function* function, int attribute, int value) {
  ENTER(enter("cuFuncSetAttribute"));
  if (!fake().functions.has(function)) return kInvalidHandle;
  if (attribute != 8 || value < 0 || value > 227 * 1024) return kInvalidValue;
  function->max_shared_bytes = static_cast<unsigned>(value);
  return kSuccess;
}

EXPORT int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  ENTER(enter_unsafe("cuMemAlloc_v2"));
  if (bytes == 0) return kInvalidValue;
  const std::size_t offset = fake().memory.allocate(bytes, false);
  if (offset == SIZE_MAX) return kOutOfMemory;
  *address = fake().memory.device_address(offset);
  return kSuccess;
}

EXPORT int cuMemFree_v2(std::uint64_t address) {
  ENTER(enter_unsafe("cuMemFree_v2", Needs::kContext));
  return fake().memory.free(fake().memory.offset_of_device(address), false) ? kSuccess : kInvalidValue;
}

EXPORT int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  ENTER(enter_unsafe("cuMemHostAlloc"));
  if (bytes == 0 || (flags & 2u) == 0) return kInvalidValue;  // all of ours are mapped
  const std::size_t offset = fake().memory.allocate(bytes, true);
  if (offset == SIZE_MAX) return kOutOfMemory;
  *memory = fake().memory.host_address(offset);
  return kSuccess;
}

EXPORT int cuMemFreeHost(void* memory) {
  ENTER(enter_unsafe("cuMemFreeHost", Needs::kContext));
  return fake().memory.free(fake().memory.offset_of_host(memory), true) ? kSuccess : kInvalidValue;
}

EXPORT int cuMemHostGetDevicePointer_v2(std::uint64_t* address, void* memory, unsigned flags) {
  ENTER(enter("cuMemHostGetDevicePointer_v2"));
  const std::size_t offset = fake().memory.offset_of_host(memory);
  if (flags != 0 || !fake().memory.holds(offset, 1, true)) return kInvalidValue;
  *address = fake().memory.device_address(offset);
  return kSuccess;
}

// Pageable memory is read at once, but the device may have the bytes later: in the order of the null stream.
EXPORT int cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes) {
  ENTER(enter_unsafe("cuMemcpyHtoD_v2"));
  const std::size_t offset = fake().memory.offset_of_device(to);
  if (!fake().memory.holds(offset, bytes)) return kInvalidValue;
  const auto* const first = static_cast<const std::uint8_t*>(from);
  null_stream()->enqueue([offset, staged = std::vector<std::uint8_t>(first, first + bytes)] {
    if (!fake().memory.holds(offset, staged.size())) return static_cast<int>(kIllegalAddress);
    std::memcpy(fake().memory.host_address(offset), staged.data(), staged.size());
    return static_cast<int>(kSuccess);
  });
  return kSuccess;
}
