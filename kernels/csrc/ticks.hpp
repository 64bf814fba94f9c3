// The counter that times the parts of a layer. One for all who read it: what one counts, another turns into
// nanoseconds.
#pragma once

namespace fused_mlp {

// Internal and always inlined: compiled per instruction set, it must never be the one the linker keeps for
// all.
[[gnu::always_inline]] static inline unsigned long long ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  unsigned long long now;
  asm volatile("mrs %0, cntvct_el0" : "=r"(now));
  return now;
#else
  return 0;  // no counter to read from here: the parts of a layer stay unknown
#endif
}

}  // namespace fused_mlp
