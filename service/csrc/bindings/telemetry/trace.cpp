// SPDX-License-Identifier: Apache-2.0
#include "engine/telemetry/trace.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <cstring>

#include "bindings/engine/completion.hpp"
#include "bindings/errors.hpp"
#include "bindings/register.hpp"
#include "engine/telemetry/request_spans.hpp"

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

void register_request_spans(nb::module_& m) {
  nb::class_<RequestSpan>(m, "RequestSpan", "A sampled request, from its arrival to its answer.")
      .def_prop_ro(
          "trace_id",
          [](const RequestSpan& span) { return std::pair(span.parent.trace_high, span.parent.trace_low); })
      .def_prop_ro("parent_id", [](const RequestSpan& span) { return span.parent.span; })
      .def_prop_ro("context", [](const RequestSpan& span) { return span.own(); })
      .def_ro("id", &RequestSpan::id)
      .def_ro("rpc", &RequestSpan::rpc)
      .def_prop_ro("path", [](const RequestSpan& span) { return text_of(span.path); })
      .def_ro("lane", &RequestSpan::lane)
      .def_ro("model", &RequestSpan::model)
      .def_ro("strategy", &RequestSpan::strategy)
      .def_ro("start", &RequestSpan::start)
      .def_ro("end", &RequestSpan::end)
      .def_ro("batch_start", &RequestSpan::batch_start)
      .def_ro("batch_end", &RequestSpan::batch_end)
      .def_ro("compute_start", &RequestSpan::compute_start)
      .def_ro("compute_end", &RequestSpan::compute_end)
      .def_ro("batch", &RequestSpan::batch)
      .def_ro("rows", &RequestSpan::rows)
      .def_ro("batch_rows", &RequestSpan::batch_rows)
      .def_ro("code", &RequestSpan::code)
      .def(
          "add",
          [](RequestSpan& span, const TicketResult& result, Nanos now) { span.add(result.outcome(), now); },
          nb::arg("result"), nb::arg("now_ns"))
      .def(
          "finish",
          [](RequestSpan& span, int code, std::string lane, std::string model, Nanos now) {
            span.code = code;
            span.lane = std::move(lane);
            span.model = std::move(model);
            span.end = now;
            finish_request(std::make_unique<RequestSpan>(span));
          },
          nb::arg("code"), nb::arg("lane"), nb::arg("model"), nb::arg("now_ns"));
  m.def("sampling", &sampling);
  m.def(
      "start_sampling",
      [](double ratio, bool parents_decide, std::size_t capacity) {
        start_sampling({ratio, parents_decide, capacity});
      },
      nb::arg("ratio"), nb::arg("parents_decide"), nb::arg("capacity"));
  m.def("stop_sampling", &stop_sampling);
  m.def("sample_request", &sample_request, nb::arg("caller"), nb::arg("rpc"), nb::arg("start_ns"),
        nb::arg("address") = 0);
  m.def("take_request_spans", [] {
    std::vector<RequestSpan> taken;
    {
      const nb::gil_scoped_release unlocked;
      taken = take_request_spans();
    }
    nb::list list;
    for (const RequestSpan& span : taken) list.append(nb::cast(span, nb::rv_policy::copy));
    return list;
  });
  m.def("dropped_request_spans", &dropped_request_spans);
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
  nb::enum_<TracePhase> phases(m, "TracePhase");
  for (int i = 0; i <= static_cast<int>(TracePhase::encode); ++i) {
    phases.value(name_of(static_cast<TracePhase>(i)), static_cast<TracePhase>(i));
  }
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
  register_request_spans(m);
}

}  // namespace fused_mlp
