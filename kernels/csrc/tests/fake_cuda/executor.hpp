// SPDX-License-Identifier: Apache-2.0
// Runs kernels: functions that a test has registered, nothing (FAKE_CUDA_KERNELS=empty), or PTX in another
// process.
//
// That process is started as `FAKE_CUDA_EXECUTOR SOCKET MEMORY BASE SIZE`: the numbers of two inherited
// files, the address on the device of the first byte of MEMORY (which it maps, shared), and the bytes of
// MEMORY. It answers one request at a time, all numbers little-endian:
//   u32 1, u64 module, u64 bytes, PTX                                          a module is loaded
//   u32 2, u64 module, u32 grid[3], u32 block[3], u32 shared bytes,            a kernel is launched
//     u32 bytes, name, u32 bytes, parameters (packed as PTX declares them), u32 count, (u64 address, u64
//     bytes)[count]
// with u32 error, u32 bytes, text. The error is a CUresult or 0. The list is what is allocated: a kernel may
// touch nothing else.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "control.h"
#include "memory.hpp"

namespace fake_cuda {

// An entry of a module of PTX: its name and the bytes of its parameters, in order.
struct Entry {
  std::string name;
  std::vector<std::size_t> parameters;
};
std::vector<Entry> entries_of(const std::string& ptx);

struct Launch {
  std::uint64_t module;
  Entry entry;
  std::uint32_t grid[3], block[3], shared_bytes;
  std::vector<std::uint64_t> parameters;  // one per parameter, zero-extended
};

class Executor {
 public:
  explicit Executor(Memory& memory);
  ~Executor();
  void add(const std::string& name, fake_cuda_kernel kernel);
  bool knows(const std::string& name);
  // CUresults. A failed execution breaks the context.
  int load(std::uint64_t module, const std::string& ptx);
  int run(const Launch& launch);

 private:
  int ask(const std::string& request);
  void start_process();

  Memory& memory_;
  std::mutex mutex_;
  std::map<std::string, fake_cuda_kernel> kernels_;
  std::string command_;
  bool empty_;
  int socket_ = -1;
  int process_ = -1;
};

}  // namespace fake_cuda
