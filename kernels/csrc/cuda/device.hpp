// SPDX-License-Identifier: Apache-2.0
// A GPU as the launcher uses it: its primary context, which is also torch's, and what is allocated in it.
// Knows nothing of models. Everything here must be made, used and freed inside a CurrentContext, on any
// thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "cuda/driver.hpp"

namespace fused_mlp::cuda {

class Device {
 public:
  // One per GPU and process. Throws std::invalid_argument for an ordinal that is not there.
  static std::shared_ptr<Device> open(int ordinal);
  static int count();
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Driver& driver() const noexcept { return driver_; }
  CUcontext context() const noexcept { return context_; }
  const std::string& name() const noexcept { return name_; }
  int capability() const noexcept { return capability_; }  // 80 for sm_80

  // An error that the context does not recover from: every later call fails, and only a new process helps.
  // 0 while there was none.
  CUresult sticky_error() const noexcept { return sticky_.load(std::memory_order_relaxed); }
  // Throws DriverError once there was one.
  void refuse_if_lost() const;
  // After a failed call: asks the driver whether its error was a sticky one. The first such is told to
  // on_lost, on the calling thread.
  void judge(CUresult code) noexcept;
  void on_lost(std::function<void(const std::string&)> tell);

  // How many cores this process may use, by affinity and quota, as Python found them: where all of them are
  // busy, a thread that waits does not spin for long.
  unsigned cores() const noexcept { return cores_.load(std::memory_order_relaxed); }
  void set_cores(unsigned cores) noexcept { cores_.store(cores, std::memory_order_relaxed); }

  // How long a batch may take: by far longer than any does. After that the device counts as lost.
  std::chrono::milliseconds patience() const noexcept { return patience_; }
  void set_patience(std::chrono::milliseconds patience) noexcept { patience_ = patience; }
  // Calls that wait for the device may never return: nothing waits for it, or frees what it may still use.
  bool hangs() const noexcept { return sticky_error() == kLaunchTimeout; }
  [[noreturn]] void give_up();

 private:
  explicit Device(int ordinal);
  void set_sticky(CUresult code, const std::string& why) noexcept;

  const Driver& driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  std::string name_;
  int capability_ = 0;
  std::atomic<unsigned> cores_{std::max(1u, std::thread::hardware_concurrency())};
  std::atomic<std::chrono::milliseconds> patience_{std::chrono::seconds(30)};
  std::atomic<CUresult> sticky_{kSuccess};
  std::mutex mutex_;  // of on_lost_
  std::function<void(const std::string&)> on_lost_;
};

// While it lives, the device's context is the calling thread's current one.
class CurrentContext {
 public:
  explicit CurrentContext(const Device& device) : driver_(device.driver()) {
    check(driver_.push_context(device.context()), "use the GPU's context");
  }
  ~CurrentContext() {
    CUcontext popped;
    driver_.pop_context(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const Driver& driver_;
};

// A handle of the driver and the function that frees it. Errors of freeing are ignored: after a sticky one
// everything fails.
template <class Handle, CUresult (*Driver::*Free)(Handle)>
class Owned {
 public:
  Owned() = default;
  Owned(const Driver& driver, Handle handle) : driver_(&driver), handle_(handle) {}
  Owned(Owned&& other) noexcept : driver_(std::exchange(other.driver_, nullptr)), handle_(other.handle_) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (driver_ != nullptr) (driver_->*Free)(handle_);
  }
  Handle get() const noexcept { return handle_; }
  // It is not freed.
  void release() noexcept { driver_ = nullptr; }

 private:
  const Driver* driver_ = nullptr;
  Handle handle_{};
};

using Module = Owned<CUmodule, &Driver::module_unload>;
using Stream = Owned<CUstream, &Driver::stream_destroy>;
using Event = Owned<CUevent, &Driver::event_destroy>;
using Graph = Owned<CUgraph, &Driver::graph_destroy>;
using GraphExec = Owned<CUgraphExec, &Driver::graph_exec_destroy>;
using DeviceMemory = Owned<CUdeviceptr, &Driver::memory_free>;

DeviceMemory allocate(const Driver& driver, std::size_t bytes);
Stream make_stream(const Driver& driver);
Event make_event(const Driver& driver, unsigned flags);

// Page-locked memory of the host that kernels can read and write as well.
class MappedMemory {
 public:
  MappedMemory(const Driver& driver, std::size_t bytes);
  float* host() const noexcept { return static_cast<float*>(memory_.get()); }
  CUdeviceptr device() const noexcept { return address_; }

 private:
  Owned<void*, &Driver::host_free> memory_;
  CUdeviceptr address_ = 0;
};

// Memory on the device with a copy of an array, which is there when this returns. Makes the context current
// itself, as does its end.
class DeviceArray {
 public:
  DeviceArray(std::shared_ptr<Device> device, const void* data, std::size_t bytes);
  ~DeviceArray();
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  CUdeviceptr address() const noexcept { return memory_.get(); }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::shared_ptr<Device> device_;
  std::size_t bytes_;
  DeviceMemory memory_;
};

}  // namespace fused_mlp::cuda
