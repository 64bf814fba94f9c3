// SPDX-License-Identifier: Apache-2.0
// The fast path for numpy arrays: reads and writes them through the buffer protocol, without a Python frame
// or a copy. Releases the GIL while the kernel runs.
#pragma once

#include <nanobind/nanobind.h>

#include "model/kernel.hpp"

namespace fused_mlp {

// Returns the result in a new array or in `out`. Returns None and writes nothing unless x and out are numpy
// arrays, float32, C-contiguous and of matching shape.
nanobind::object call_numpy(const MlpKernel& kernel, nanobind::handle x, nanobind::handle out);

}  // namespace fused_mlp
