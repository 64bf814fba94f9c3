// SPDX-License-Identifier: Apache-2.0
#include "engine/trace.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <cstring>

#include "bindings/register.hpp"

namespace nb = nanobind;

namespace fused_mlp {

namespace {

nb::list spans_from(const Trace& trace, std::size_t start, std::size_t count) {
  nb::list spans;
  const std::size_t end = std::min(trace.spans.size(), start + count);
  for (std::size_t i = start; i < end; ++i) {
    const TraceSpan& span = trace.spans[i];
    spans.append(nb::make_tuple(name_of(span.phase), span.thread, span.request, span.rows, span.start,
                                span.end, nb::str(span.lane, std::strlen(span.lane)),
                                span.caller.present() ? trace_hex(span.caller) : std::string()));
  }
  return spans;
}

}  // namespace

void register_trace(nb::module_& m) {
  nb::class_<TraceContext>(m, "TraceContext", "The header traceparent of a request.")
      .def(
          "__init__",
          [](TraceContext* self, std::string_view header) {
            new (self) TraceContext(parse_traceparent(header));
          },
          nb::arg("header") = "")
      .def_ro("sampled", &TraceContext::sampled)
      .def_prop_ro("trace_id",
                   [](const TraceContext& self) { return self.present() ? trace_hex(self) : std::string(); });
  nb::enum_<TracePhase>(m, "TracePhase")
      .value("decode", TracePhase::decode)
      .value("queue", TracePhase::queue)
      .value("gather", TracePhase::gather)
      .value("kernel", TracePhase::kernel)
      .value("scatter", TracePhase::scatter)
      .value("encode", TracePhase::encode);
  m.def("start_trace", &start_trace, nb::arg("spans_per_thread"));
  nb::class_<Trace>(m, "Trace")
      .def_ro("threads", &Trace::threads)
      .def_ro("dropped", &Trace::dropped)
      // A part at a time: the GIL is held while it is made.
      .def("spans", &spans_from, nb::arg("start"), nb::arg("count"));
  m.def("stop_trace", &stop_trace, nb::call_guard<nb::gil_scoped_release>());
  m.def("tracing", &tracing);
  m.def("next_trace_id", &next_trace_id);
  m.def("record_span", &record_span, nb::arg("phase"), nb::arg("request"), nb::arg("rows"),
        nb::arg("start_ns"), nb::arg("end_ns"), nb::arg("lane"), nb::arg("caller") = TraceContext());
}

}  // namespace fused_mlp
