// SPDX-License-Identifier: Apache-2.0
// Python bindings of phases.hpp and probe.hpp, for `fused_mlp.kernels.profile`. Registration only.
#pragma once

#include <nanobind/nanobind.h>

namespace fused_mlp {

void register_profile(nanobind::module_& m);

}  // namespace fused_mlp
