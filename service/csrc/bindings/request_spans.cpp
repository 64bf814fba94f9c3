// SPDX-License-Identifier: Apache-2.0
#include "engine/request_spans.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>

#include "bindings/completion.hpp"
#include "bindings/register.hpp"

namespace nb = nanobind;

namespace fused_mlp {
namespace {

// Paths are what peers sent: not always UTF-8.
nb::str read_text(const std::string& text) {
  return nb::steal<nb::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

nb::list spans_of(const std::vector<RequestSpan>& taken) {
  nb::list list;
  for (const RequestSpan& span : taken) list.append(nb::cast(span, nb::rv_policy::copy));
  return list;
}

}  // namespace

void register_request_spans(nb::module_& m) {
  nb::class_<RequestSpan>(m, "RequestSpan", "A sampled request, from its arrival to its answer.")
      .def_prop_ro(
          "trace_id",
          [](const RequestSpan& span) { return std::pair(span.parent.trace_high, span.parent.trace_low); })
      .def_prop_ro("parent_id", [](const RequestSpan& span) { return span.parent.span; })
      .def_prop_ro("context", [](const RequestSpan& span) { return span.own(); })
      .def_ro("id", &RequestSpan::id)
      .def_ro("rpc", &RequestSpan::rpc)
      .def_prop_ro("path", [](const RequestSpan& span) { return read_text(span.path); })
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
  m.def("sample_request", &sample_request, nb::arg("caller"), nb::arg("rpc"), nb::arg("start_ns"));
  m.def("take_request_spans", [] {
    std::vector<RequestSpan> taken;
    {
      const nb::gil_scoped_release unlocked;
      taken = take_request_spans();
    }
    return spans_of(taken);
  });
  m.def("dropped_request_spans", &dropped_request_spans);
}

}  // namespace fused_mlp
