// SPDX-License-Identifier: Apache-2.0
// How threads share cores: event loops first, then workers, then the background. All of it is best effort:
// without these settings everything works, with longer waits.
#pragma once

#include <cstddef>

namespace fused_mlp {

// Sets the calling thread to SCHED_BATCH at nice 19: last in the run queue, and it never preempts. Kernels
// behind the C interface then use no other core. SCHED_IDLE would be wrong: an unfused kernel holds the GIL
// between its operations, and a starved thread must not hold the GIL.
void lower_thread_priority() noexcept;

// For an event loop: asks for short turns (Linux 6.12). Such a thread, when it wakes up, has its turn before
// one with longer turns that is running. Its share of the core stays the same.
void take_short_turns() noexcept;
// For a worker, which computes for long: SCHED_BATCH, turns of 0.5 ms, and five levels nicer than the loops.
// Clients on the same machine, too, then get a core at once; at equal priority and with turns of 3 ms they
// waited for up to 3 ms.
void step_back() noexcept;

// Returns memory that was freed to the system; the allocator keeps it otherwise.
void release_free_memory() noexcept;
// Has the allocator return large parts of it at once. Call it before threads that compute are started. By
// default each thread's heap ends in up to 64 MiB of it, which release_free_memory() does not return.
void keep_little_free_memory() noexcept;
// Bytes in use of what the allocator keeps; blocks with a mapping of their own go back by themselves. 0: the
// allocator does not say.
std::size_t allocated_bytes() noexcept;

// Limits OpenMP (which torch uses) to one thread for kernels that the calling thread runs. Call it before
// each run: torch sets the thread count itself on a thread's first call.
void limit_openmp_to_one_thread() noexcept;

}  // namespace fused_mlp
