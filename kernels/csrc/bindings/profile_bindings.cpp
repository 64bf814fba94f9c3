// SPDX-License-Identifier: Apache-2.0
#include "bindings/profile_bindings.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "profile/phases.hpp"
#include "profile/probe.hpp"

namespace nb = nanobind;

namespace fused_mlp {

namespace {

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::kPack:
      return "pack";
    case Phase::kLayer:
      return "layer";
    case Phase::kNorm:
      return "norm";
    case Phase::kSoftmax:
      return "softmax";
    case Phase::kCombine:
      return "combine";
    case Phase::kAffine:
      return "affine";
    case Phase::kMap:
      return "map";
    case Phase::kQuantize:
      return "quantize";
  }
  return "unknown";
}

nb::tuple stop() {
  const PhaseRecording recording = stop_recording_phases();
  nb::list spans;
  for (const PhaseSpan& span : recording.spans) {
    spans.append(nb::make_tuple(name_of(span.phase), span.layer, span.thread, span.rows, span.in, span.out,
                                span.start_ns, span.end_ns, span.product_ns, span.epilogue_ns, span.tiles,
                                span.flops));
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
}

}  // namespace fused_mlp
