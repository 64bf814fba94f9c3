// SPDX-License-Identifier: Apache-2.0
// How the operating system gives a thread its turns: policy, nice value, length. Linux only.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fused_mlp {

constexpr int kLowestPriority = 19;
// How much nicer than the process workers of the service are, which let event loops go first.
constexpr int kWorkersNicer = 5;

// The first version of the kernel's struct sched_attr, which the C library does not have.
struct Turns {
  std::uint32_t size = sizeof(Turns);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime_ns = 0;  // of SCHED_OTHER and SCHED_BATCH: how long a turn is
  std::uint64_t deadline_ns = 0;
  std::uint64_t period_ns = 0;
};

// The turns of the calling thread.
inline Turns current_turns() noexcept {
  Turns turns;
#if defined(__linux__)
  if (syscall(SYS_sched_getattr, 0, &turns, sizeof turns, 0) != 0) return {};
#endif
  return turns;
}

inline void set_turns([[maybe_unused]] Turns turns) noexcept {
#if defined(__linux__)
  [[maybe_unused]] const long done = syscall(SYS_sched_setattr, 0, &turns, 0);
#endif
}

// Takes those of another thread if it is nicer. Never the other way round, which would need a privilege.
inline void step_back_to(const Turns& nicer, Turns& mine) noexcept {
  if (nicer.nice <= mine.nice) return;
  mine = nicer;
  set_turns(mine);
}

}  // namespace fused_mlp
