// SPDX-License-Identifier: Apache-2.0
// The registration functions of the Python module, one per file.
#pragma once

#include <nanobind/nanobind.h>

namespace fused_mlp {

void register_errors(nanobind::module_& m);
void register_access(nanobind::module_& m);
void register_metrics(nanobind::module_& m);
void register_exposition(nanobind::module_& m);
void register_completion(nanobind::module_& m);
void register_engine(nanobind::module_& m);
void register_input_layout(nanobind::module_& m);
void register_router(nanobind::module_& m);
void register_codec(nanobind::module_& m);
void register_trace(nanobind::module_& m);

}  // namespace fused_mlp
