// SPDX-License-Identifier: Apache-2.0
/* How a test steers the fake driver: beyond the functions of libcuda.so.1 the library exports these. The
 * environment does so for whole processes:
 * - FAKE_CUDA_EXECUTOR: a command that runs PTX (see executor.hpp); without it only registered kernels can be
 *   loaded
 * - FAKE_CUDA_KERNELS=empty: every kernel can be loaded and does nothing
 * - FAKE_CUDA_STREAMS=drop: nothing that is enqueued is done, neither kernels nor copies; for measurements
 * - FAKE_CUDA_DELAY_US: the longest random delay before a piece of work, 20 if not given
 * - FAKE_CUDA_MEMORY_MIB: of each device, with all page-locked memory in it; 256 if not given
 * - FAKE_CUDA_CAPABILITY: 80 if not given
 * - FAKE_CUDA_FAIL_FILE: while it exists, and holds `SYMBOL CODE`, calls of that function fail. A SYMBOL
 *   `kernel` fails kernels as they run, which breaks the context as a real one does */
#ifndef FAKE_CUDA_CONTROL_H
#define FAKE_CUDA_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel in C++: `parameters` as the launch had them, `at` translates an address on the device; it is null
 * for bytes outside of one allocation, which breaks the context. */
struct fake_cuda_launch {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  const uint64_t* parameters;
  void* (*at)(uint64_t address, size_t bytes);
};
typedef void (*fake_cuda_kernel)(const struct fake_cuda_launch*);

/* Counts of what is alive: allocations (device and host), modules, streams, events, graphs, executable
 * graphs, contexts. */
struct fake_cuda_alive {
  size_t allocations, modules, streams, events, graphs, executables, contexts;
};

struct fake_cuda_control {
  void (*add_kernel)(const char* name, fake_cuda_kernel kernel);
  /* The next `times` calls of a function fail, after `skip` that do not. `kernel` as above; `kernel` with 0
   * times: none. */
  void (*fail)(const char* symbol, int code, int skip, int times);
  void (*set_delay_us)(unsigned most);
  /* Work on all streams waits while held. */
  void (*hold)(int held);
  unsigned (*calls)(const char* symbol);
  struct fake_cuda_alive (*alive)(void);
  /* A new process would have a context without errors. */
  void (*reset)(void);
};

/* The only function that a test looks up by name. */
const struct fake_cuda_control* fake_cuda_controls(void);

#ifdef __cplusplus
}
#endif
#endif
