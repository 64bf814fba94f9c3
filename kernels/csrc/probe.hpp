// What this machine can do, measured: the limits that a profile and the benchmark compare a kernel with.
#pragma once

#include <cstddef>

namespace fused_mlp {

// Both throw std::runtime_error when a thread cannot be started.

// Floating point operations per second of multiply-adds in registers, all threads together; one measurement
// of about a millisecond, in the best instruction set there is.
double probe_flops(unsigned threads);

// Seconds to read `bytes` once, each thread its share, wherever repeated reading keeps them; the best of some
// samples.
double probe_read_seconds(std::size_t bytes, unsigned threads, unsigned samples);

}  // namespace fused_mlp
