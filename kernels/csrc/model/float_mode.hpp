// SPDX-License-Identifier: Apache-2.0
// Sets the default floating point mode during a call. Otherwise, with a caller that flushes denormals,
// results would depend on which thread computed them.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace fused_mlp {

class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : saved_(_mm_getcsr()) {
    // The low six bits are sticky status flags, not modes.
    if ((saved_ & ~0x3Fu) != kDefault) _mm_setcsr(kDefault);
  }
  ~FloatMode() {
    if ((saved_ & ~0x3Fu) != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kDefault = 0x1F80;  // all exceptions masked, round to nearest, denormals kept
  unsigned saved_;
#elif defined(__aarch64__)
  FloatMode() : saved_(get()) {
    if (saved_ != kDefault) set(kDefault);
  }
  ~FloatMode() {
    if (saved_ != kDefault) set(saved_);
  }

 private:
  static constexpr unsigned long kDefault = 0;  // round to nearest, denormals kept, no traps
  static unsigned long get() {
    unsigned long mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void set(unsigned long mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
  unsigned long saved_;
#else
  FloatMode() {}
  ~FloatMode() {}
#endif
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;
};

}  // namespace fused_mlp
