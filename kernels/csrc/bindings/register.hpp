// SPDX-License-Identifier: Apache-2.0
// The registration functions of the Python module fused_mlp.kernels._cpu.
#pragma once

#include <nanobind/nanobind.h>

#include "model/kernel.hpp"

namespace fused_mlp {

// The operations that a program is handed over in, and the kernel's constructor.
void register_program(nanobind::module_& m, nanobind::class_<MlpKernel>& kernel);
// phases.hpp and probe.hpp, for `fused_mlp.kernels.profile`.
void register_profile(nanobind::module_& m);

}  // namespace fused_mlp
