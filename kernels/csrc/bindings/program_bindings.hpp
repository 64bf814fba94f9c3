// SPDX-License-Identifier: Apache-2.0
// Registers the operations that a program is handed over in, and the kernel's constructor.
#pragma once

#include <nanobind/nanobind.h>

#include "model/kernel.hpp"

namespace fused_mlp {

void register_program(nanobind::module_& m, nanobind::class_<MlpKernel>& kernel);

}  // namespace fused_mlp
