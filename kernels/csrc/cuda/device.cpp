// SPDX-License-Identifier: Apache-2.0
#include "cuda/device.hpp"

#include <array>
#include <map>
#include <mutex>

namespace fused_mlp::cuda {

namespace {

// Errors that never outlast their cause, however often they come: memory is freed, and a recording of a
// graph, by any library of this process, ends.
bool passes(CUresult code) {
  return code == kOutOfMemory || (code >= kFirstCaptureError && code <= kLastCaptureError);
}

}  // namespace

int Device::count() {
  int count = 0;
  check(Driver::get().device_count(&count), "count the GPUs");
  return count;
}

std::shared_ptr<Device> Device::open(int ordinal) {
  // A sticky error is the process's, not the kernel's: while one kernel lives, all share what is known of its
  // device.
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<Device>> devices;
  const int there = count();
  if (ordinal < 0 || ordinal >= there) {
    throw std::invalid_argument("device: expected 0 to " + std::to_string(there - 1) + ", got " +
                                std::to_string(ordinal));
  }
  const std::lock_guard lock(mutex);
  std::shared_ptr<Device> device = devices[ordinal].lock();
  if (!device) devices[ordinal] = device = std::shared_ptr<Device>(new Device(ordinal));
  return device;
}

Device::Device(int ordinal) : driver_(Driver::get()) {
  check(driver_.device_get(&device_, ordinal), "open the GPU");
  std::array<char, 128> name{};
  check(driver_.device_name(name.data(), static_cast<int>(name.size()), device_), "ask the GPU's name");
  name_ = name.data();
  int major = 0, minor = 0;
  check(driver_.device_attribute(&major, kComputeCapabilityMajor, device_), "ask the GPU's capability");
  check(driver_.device_attribute(&minor, kComputeCapabilityMinor, device_), "ask the GPU's capability");
  capability_ = 10 * major + minor;
  check(driver_.primary_retain(&context_, device_), "make the GPU's context");
}

Device::~Device() { driver_.primary_release(device_); }

void Device::on_lost(std::function<void(const std::string&)> tell) {
  const std::lock_guard lock(mutex_);
  on_lost_ = std::move(tell);
}

void Device::judge(CUresult code) noexcept {
  if (code == kSuccess || passes(code) || sticky_error() != kSuccess) return;
  CUresult verdict = kSuccess;
  try {
    try {
      const CurrentContext current(*this);
      (void)make_event(driver_, kEventDisableTiming);
    } catch (const DriverError& error) {
      verdict = error.code();
    }
    if (verdict == code) set_sticky(code, driver_.describe(code));
  } catch (const std::exception&) {  // out of memory: the next batch that fails is judged
  }
}

void Device::refuse_if_lost() const {
  if (const CUresult sticky = sticky_error(); sticky != kSuccess) {
    throw DriverError(sticky, "use the GPU any more, restart the process");
  }
}

void Device::give_up() {
  const std::string why = "no answer within " + std::to_string(patience().count()) + " ms";
  set_sticky(kLaunchTimeout, why);
  throw DriverError(kLaunchTimeout, "cannot run on the GPU: " + why);
}

void Device::set_sticky(CUresult code, const std::string& why) noexcept {
  CUresult none = kSuccess;  // the first one stays: whether it hangs decides what may still be freed
  if (!sticky_.compare_exchange_strong(none, code, std::memory_order_relaxed)) return;
  try {
    std::function<void(const std::string&)> tell;
    {
      const std::lock_guard lock(mutex_);
      tell = on_lost_;
    }
    if (tell) tell(why);
  } catch (const std::exception&) {  // the batch's own error is reported in any case
  }
}

DeviceMemory allocate(const Driver& driver, std::size_t bytes) {
  CUdeviceptr address = 0;
  check(driver.memory_alloc(&address, bytes), "allocate memory on the GPU");
  return {driver, address};
}

Stream make_stream(const Driver& driver) {
  CUstream stream = nullptr;
  check(driver.stream_create(&stream, kStreamNonBlocking), "make a stream");
  return {driver, stream};
}

Event make_event(const Driver& driver, unsigned flags) {
  CUevent event = nullptr;
  check(driver.event_create(&event, flags), "make an event");
  return {driver, event};
}

MappedMemory::MappedMemory(const Driver& driver, std::size_t bytes) {
  void* memory = nullptr;
  check(driver.host_alloc(&memory, bytes, kHostPortable | kHostDeviceMap), "allocate page-locked memory");
  memory_ = {driver, memory};
  check(driver.host_device_pointer(&address_, memory, 0), "map page-locked memory");
}

DeviceArray::DeviceArray(std::shared_ptr<Device> device, const void* data, std::size_t bytes)
    : device_(std::move(device)), bytes_(bytes) {
  const Driver& driver = device_->driver();
  const CurrentContext current(*device_);
  memory_ = allocate(driver, bytes > 0 ? bytes : 1);
  if (bytes == 0) return;
  check(driver.copy_in(memory_.get(), data, bytes), "copy weights to the GPU");
  // Pageable memory is copied through the driver's own, and the call returns before the GPU has all of it.
  // The launcher's streams do not wait for the null stream.
  check(driver.stream_synchronize(nullptr), "copy weights to the GPU");
}

DeviceArray::~DeviceArray() {
  if (device_->hangs()) {
    memory_.release();
    return;
  }
  try {
    const CurrentContext current(*device_);
    memory_ = {};
  } catch (const std::exception&) {  // the driver has shut down before us
  }
}

}  // namespace fused_mlp::cuda
