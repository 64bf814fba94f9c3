#include "engine/trace.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <cstring>

#include "bindings/register.hpp"

namespace nb = nanobind;

namespace fused_mlp {

namespace {

nb::tuple stop() {
  Trace trace;
  {
    const nb::gil_scoped_release unlocked;
    trace = stop_trace();
  }
  nb::list spans;
  for (const TraceSpan& span : trace.spans) {
    spans.append(nb::make_tuple(name_of(span.phase), span.thread, span.request, span.rows, span.start,
                                span.end, nb::str(span.lane, std::strlen(span.lane))));
  }
  return nb::make_tuple(spans, trace.threads, trace.dropped);
}

}  // namespace

void register_trace(nb::module_& m) {
  nb::enum_<TracePhase>(m, "TracePhase")
      .value("decode", TracePhase::decode)
      .value("queue", TracePhase::queue)
      .value("gather", TracePhase::gather)
      .value("kernel", TracePhase::kernel)
      .value("scatter", TracePhase::scatter)
      .value("encode", TracePhase::encode);
  m.def("start_trace", &start_trace, nb::arg("spans_per_thread"));
  m.def("stop_trace", &stop);
  m.def("tracing", &tracing);
  m.def("next_trace_id", &next_trace_id);
  m.def("record_span", &record_span, nb::arg("phase"), nb::arg("request"), nb::arg("rows"),
        nb::arg("start_ns"), nb::arg("end_ns"), nb::arg("lane"));
}

}  // namespace fused_mlp
