// Settings that keep a background thread from slowing down the others.
#pragma once

namespace fused_mlp {

// Sets the calling thread to SCHED_BATCH at nice 19: last in the run queue, and it never preempts. Kernels
// behind the C interface then use no other core. SCHED_IDLE would be wrong: an unfused kernel holds the GIL
// between its operations, and a starved thread must not hold the GIL.
void lower_thread_priority() noexcept;

// Limits OpenMP (which torch uses) to one thread for kernels that the calling thread runs. Call it before
// each run: torch sets the thread count itself on a thread's first call.
void limit_openmp_to_one_thread() noexcept;

}  // namespace fused_mlp
