// SPDX-License-Identifier: Apache-2.0
/* The C interface of a compiled kernel, for the engine, tests or other languages. A kernel provides it in a
 * PyCapsule named FUSED_MLP_KERNEL_CAPSULE whose pointer is a `const struct fused_mlp_kernel*`. The capsule
 * must outlive every call. */
#ifndef FUSED_MLP_KERNEL_API_H
#define FUSED_MLP_KERNEL_API_H

#include <stddef.h>
#include <stdint.h>

#define FUSED_MLP_KERNEL_ABI 3
#define FUSED_MLP_KERNEL_CAPSULE "fused_mlp.kernel"

/* Flags. WAITS: run() waits for a device, so a thread that must not block leaves it to another one. */
#define FUSED_MLP_KERNEL_WAITS 1u

#ifdef __cplusplus
extern "C" {
#endif

/* A batch in steps, for a thread that gathers the next batch while a device computes this one. Thread-safe;
 * one thread at a time has a batch. None of them throws; int and error are as in run(). */
struct fused_mlp_steps {
  /* A place for the rows of a batch: writes to *x where they go, (rows, in_features). Never waits: null if
   * there is no place now, or never for so many rows. Then run() takes them. */
  void* (*begin)(void* ctx, size_t rows, float** x);
  /* Has the device compute; x is not written to any more. */
  int (*start)(void* ctx, void* batch, char* error, size_t error_size);
  /* Waits for the device. *y: (rows, out_features), to be read until end(). */
  int (*finish)(void* ctx, void* batch, unsigned busy, const float** y, char* error, size_t error_size);
  /* Gives the place back, whatever has succeeded since begin(). */
  void (*end)(void* ctx, void* batch);
};

/* Words [first, last) of a row. */
struct fused_mlp_words {
  uint32_t first, last;
};

/* Rows that have some words in common: these once, side by side, and the others of each row, side by side. */
struct fused_mlp_group {
  const float* shared;
  const float* own; /* (rows, other words) */
  size_t rows;
};

struct fused_mlp_kernel {
  uint32_t abi;   /* FUSED_MLP_KERNEL_ABI */
  uint32_t flags; /* FUSED_MLP_KERNEL_..., or 0 */
  void* ctx;
  size_t in_features;
  size_t out_features;
  /* x: (rows, in_features), y: (rows, out_features); float32, C-contiguous, any alignment, no overlap.
   * busy: the number of other threads of the process that need a core now; the kernel may use the cores that
   * they leave free. UINT_MAX: use the calling thread only.
   * Thread-safe and re-entrant; needs no GIL; never throws. Returns 0, or non-zero with a NUL-terminated
   * message in error[0..error_size). */
  int (*run)(void* ctx, const float* x, size_t rows, float* y, unsigned busy, char* error, size_t error_size);
  /* The strategy ("row_block", "gemv", ...) of the calling thread's last run() of this kernel, if that had so
   * many rows; otherwise the one planned for so many. A string with static lifetime. */
  const char* (*strategy)(void* ctx, size_t rows);
  /* How many calls of run() make progress at once; one more waits for another to end. 0: any number. */
  uint32_t max_at_once;
  /* Null: only run(). */
  const struct fused_mlp_steps* steps;
  /* As run(), for groups whose rows have the same words in common: `runs`, ascending, with gaps between them.
   * y has the rows of all groups, and the bits that run() would have written. Null: only run(). */
  int (*run_groups)(void* ctx, const struct fused_mlp_words* runs, size_t run_count,
                    const struct fused_mlp_group* groups, size_t group_count, float* y, unsigned busy,
                    char* error, size_t error_size);
};

#ifdef __cplusplus
}
#endif
#endif
