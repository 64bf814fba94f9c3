// SPDX-License-Identifier: Apache-2.0
#include "engine/clock.hpp"

#include <nanobind/stl/shared_ptr.h>

#include "bindings/register.hpp"

namespace nb = nanobind;

namespace fused_mlp {

void register_clock(nb::module_& m) {
  nb::class_<ManualClock>(m, "ManualClock", "Stands still until advanced: for tests.")
      .def(nb::init<Nanos>(), nb::arg("start_ns") = 1'000'000'000)
      // Waking the engine takes its mutex: not with the GIL.
      .def("advance", &ManualClock::advance, nb::arg("by_ns"), nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace fused_mlp
