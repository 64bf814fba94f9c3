// SPDX-License-Identifier: Apache-2.0
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/register.hpp"
#include "profile/phases.hpp"
#include "profile/probe.hpp"

namespace nb = nanobind;

namespace fused_mlp {

namespace {

// By Phase.
constexpr const char* kPhaseNames[] = {"pack",   "layer", "norm",     "softmax", "combine",
                                       "affine", "map",   "quantize", "lookup",  "group"};

nb::tuple stop() {
  const PhaseRecording recording = stop_recording_phases();
  nb::list spans;
  for (const PhaseSpan& span : recording.spans) {
    spans.append(nb::make_tuple(kPhaseNames[static_cast<std::size_t>(span.phase)], span.layer, span.thread,
                                span.rows, span.in, span.out, span.start_ns, span.end_ns, span.product_ns,
                                span.epilogue_ns, span.tiles, span.flops));
  }
  return nb::make_tuple(spans, recording.dropped);
}

}  // namespace

void register_profile(nb::module_& m) {
  m.def("start_recording_phases", start_recording_phases, nb::arg("capacity"));
  m.def("stop_recording_phases", stop);
  m.def("probe_flops", probe_flops, nb::arg("threads"), nb::arg("int8") = false,
        nb::call_guard<nb::gil_scoped_release>());
  m.def("probe_read_seconds", probe_read_seconds, nb::arg("bytes"), nb::arg("threads"), nb::arg("samples"),
        nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "probe_random_line_seconds",
      [](const nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>& table, int samples) {
        return probe_random_line_seconds(table.data(), table.size(), samples);
      },
      nb::arg("table"), nb::arg("samples"));
}

}  // namespace fused_mlp
