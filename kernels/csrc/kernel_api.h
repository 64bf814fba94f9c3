/* The narrow C interface between a compiled kernel and whatever runs it (the engine, a test, another
 * language). A kernel hands it over in a PyCapsule named FUSED_MLP_KERNEL_CAPSULE whose pointer is a
 * `const struct fused_mlp_kernel*`; the capsule (and whatever owns it) must outlive every call. */
#ifndef FUSED_MLP_KERNEL_API_H
#define FUSED_MLP_KERNEL_API_H

#include <stddef.h>
#include <stdint.h>

#define FUSED_MLP_KERNEL_ABI 1
#define FUSED_MLP_KERNEL_CAPSULE "fused_mlp.kernel.v1"

#ifdef __cplusplus
extern "C" {
#endif

struct fused_mlp_kernel {
  uint32_t abi; /* FUSED_MLP_KERNEL_ABI */
  void* ctx;
  size_t in_features;
  size_t out_features;
  /* x: (rows, in_features) float32, C-contiguous; y: (rows, out_features) likewise; any alignment,
   * no overlap. busy: other threads of the process that need a core of their own now; the kernel may use
   * the cores they leave over. UINT_MAX: whoever calls gives way to all others.
   * Thread-safe and re-entrant; needs no GIL; never throws. Returns 0, or non-zero with a
   * NUL-terminated message in error[0..error_size). */
  int (*run)(void* ctx, const float* x, size_t rows, float* y, unsigned busy, char* error, size_t error_size);
  /* How a batch of that many rows is run ("row_block", "gemv", ...). A string with static lifetime. */
  const char* (*strategy)(void* ctx, size_t rows);
};

#ifdef __cplusplus
}
#endif
#endif
