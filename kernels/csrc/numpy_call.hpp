// The fastest way from a numpy array to its result: straight through the buffer protocol, without a
// Python frame or a copy. Runs with the GIL held, and without it while the kernel computes.
#pragma once

#include <nanobind/nanobind.h>

#include "kernel.hpp"

namespace fused_mlp {

// kernel(x) as a new array, or kernel(x, out) as `out`. None where x and out are not both numpy arrays,
// float32, C-contiguous and of fitting shape: then nothing was written.
nanobind::object call_numpy(const MlpKernel& kernel, nanobind::handle x, nanobind::handle out);

}  // namespace fused_mlp
