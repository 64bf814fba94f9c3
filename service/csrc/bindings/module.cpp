// SPDX-License-Identifier: Apache-2.0
// The Python module fused_mlp.service._engine. Registration only; the stub is service/_engine.pyi.
#include "bindings/register.hpp"

NB_MODULE(_engine, m) {
  m.doc() = "Queues, batches and runs requests: the hot path between a front and a kernel.";
  // A server that exits at once does not destroy its engine, on purpose.
  nanobind::set_leak_warnings(false);
  fused_mlp::register_errors(m);  // first: others use its types
  fused_mlp::register_access(m);
  fused_mlp::register_metrics(m);
  fused_mlp::register_exposition(m);
  fused_mlp::register_completion(m);
  fused_mlp::register_trace(m);
  fused_mlp::register_engine(m);
  fused_mlp::register_input_layout(m);
  fused_mlp::register_router(m);
  fused_mlp::register_codec(m);
}
