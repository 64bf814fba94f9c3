// service._engine: the engine for Python. Registration only; the stub is service/_engine.pyi.
#include "bindings/register.hpp"

NB_MODULE(_engine, m) {
  m.doc() = "Queues, batches and runs requests; owns the hot path between a front and a kernel.";
  // A server that is told to exit at once leaves its engine behind, on purpose: no report about it.
  nanobind::set_leak_warnings(false);
  fused_mlp::register_errors(m);  // first: the others name what it registers
  fused_mlp::register_clock(m);
  fused_mlp::register_tensor(m);
  fused_mlp::register_metrics(m);
  fused_mlp::register_completion(m);
  fused_mlp::register_engine(m);
  fused_mlp::register_router(m);
  fused_mlp::register_codec(m);
  fused_mlp::register_trace(m);
#ifdef FUSED_MLP_NATIVE_FRONT
  fused_mlp::register_front(m);
  m.attr("NATIVE_FRONT") = true;
#else
  m.attr("NATIVE_FRONT") = false;
#endif
}
