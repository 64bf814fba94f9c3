// How a thread keeps out of the way of all others.
#pragma once

namespace fused_mlp {

// The calling thread goes to the end of every line for a core and never preempts whoever has one: SCHED_BATCH
// at nice 19. Kernels behind the C interface are told that no other core is free. Not SCHED_IDLE: an unfused
// kernel holds the GIL between its operations, and a thread that may starve for long must not hold what live
// Python is waiting for.
void give_way() noexcept;

// Kernels that share their work out by OpenMP, as torch does, keep to the calling thread from here on. To be
// called before each run: torch sets itself up on a thread's first call, and then takes its own number again.
void stay_on_one_thread() noexcept;

}  // namespace fused_mlp
