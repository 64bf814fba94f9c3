// Bindings of the recording of phases and of the machine probe, for `kernels.profile`. Registration only.
#pragma once

#include <nanobind/nanobind.h>

namespace fused_mlp {

void register_watching(nanobind::module_& m);

}  // namespace fused_mlp
