// SPDX-License-Identifier: Apache-2.0
// Measures the limits of this machine, with which a profile and the benchmark compare a kernel.
#pragma once

#include <cstddef>

namespace fused_mlp {

// Both functions throw std::runtime_error if a thread cannot be started.

// Floating point operations per second of multiply-adds in registers, or operations of int8 multiply-adds,
// all threads together, with the best instruction set. One measurement of about a millisecond.
double probe_flops(unsigned threads, bool int8 = false);

// Seconds to read `bytes` once, split between the threads, from the cache level (or memory) that holds them
// after repeated reading. The best of `samples`.
double probe_read_seconds(std::size_t bytes, unsigned threads, unsigned samples);

// Seconds per cache line of `floats` floats that are read in random order, prefetched ahead: what lookups in
// a table of that size are limited by. The best of `samples`.
double probe_random_line_seconds(const float* data, std::size_t floats, int samples);

}  // namespace fused_mlp
