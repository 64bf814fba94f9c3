// SPDX-License-Identifier: Apache-2.0
// The processor's counter, which measures the parts of a layer. phases.cpp converts ticks to nanoseconds.
#pragma once

namespace fused_mlp {

// Static and always inlined: a copy compiled for AVX must not be linked into code for the baseline.
[[gnu::always_inline]] static inline unsigned long long ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  unsigned long long now;
  asm volatile("mrs %0, cntvct_el0" : "=r"(now));
  return now;
#else
  return 0;  // no counter: the parts of a layer are not measured
#endif
}

}  // namespace fused_mlp
