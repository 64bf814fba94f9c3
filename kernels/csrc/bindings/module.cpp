// SPDX-License-Identifier: Apache-2.0
// The Python module fused_mlp.kernels._cpu: argument checks and registration.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/numpy_call.hpp"
#include "bindings/packer.hpp"
#include "bindings/register.hpp"
#include "model/kernel.hpp"

namespace nb = nanobind;
using fused_mlp::MlpKernel;

namespace {

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Writes the result to y. False if the shapes do not match.
bool run(const MlpKernel& kernel, const Matrix& x, const Result& y) {
  if (x.shape(1) != kernel.in_features() || y.shape(1) != kernel.out_features() || x.shape(0) != y.shape(0)) {
    return false;
  }
  const nb::gil_scoped_release released;
  kernel.run(x.data(), x.shape(0), y.data());
  return true;
}

// Without checks: the caller has validated dtype, layout, device and shape.
void run_at(const MlpKernel& kernel, std::uintptr_t x, std::size_t rows, std::uintptr_t y) {
  const nb::gil_scoped_release released;
  kernel.run(reinterpret_cast<const float*>(x), rows, reinterpret_cast<float*>(y));
}

// groups: their shared words, and (rows, other words).
using Words = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
bool run_groups(const MlpKernel& kernel, const std::vector<std::pair<std::uint32_t, std::uint32_t>>& shared,
                const std::vector<std::pair<Words, Matrix>>& groups, const Result& y) {
  std::vector<fused_mlp_words> runs;
  std::size_t width = 0, rows = 0, end = 0;
  for (const auto& [first, last] : shared) {
    if (first >= last || last > kernel.in_features() || (first <= end && !runs.empty())) return false;
    runs.push_back({first, last});
    width += last - first;
    end = last;
  }
  std::vector<fused_mlp_group> each;
  for (const auto& [words, own] : groups) {
    if (words.shape(0) != width || own.shape(1) != kernel.in_features() - width) return false;
    each.push_back({words.data(), own.data(), own.shape(0)});
    rows += own.shape(0);
  }
  if (y.shape(0) != rows || y.shape(1) != kernel.out_features()) return false;
  const nb::gil_scoped_release released;
  kernel.run_groups(runs, each, y.data());
  return true;
}

// The capsule keeps the kernel's Python object alive.
nb::object capsule(nb::handle self) {
  const MlpKernel& kernel = nb::cast<const MlpKernel&>(self);
  PyObject* made =
      PyCapsule_New(const_cast<fused_mlp_kernel*>(kernel.api()), FUSED_MLP_KERNEL_CAPSULE,
                    [](PyObject* c) { Py_XDECREF(static_cast<PyObject*>(PyCapsule_GetContext(c))); });
  if (made == nullptr) throw nb::python_error();
  PyCapsule_SetContext(made, self.inc_ref().ptr());
  return nb::steal(made);
}

// For batches of up to `most` rows: each strategy with the largest batch that uses it, in order.
std::vector<std::pair<std::string, std::size_t>> strategies(const MlpKernel& kernel, std::size_t most) {
  std::vector<std::pair<std::string, std::size_t>> found;
  for (std::size_t rows = 1; rows <= most; ++rows) {
    const char* name = kernel.planned_strategy(rows);
    if (found.empty() || found.back().first != name) found.emplace_back(name, rows);
    found.back().second = rows;
  }
  return found;
}

std::vector<std::string> usable_isas(bool int8) {
  std::vector<std::string> names;
  for (const fused_mlp::Isa* isa : fused_mlp::usable_isas(int8)) names.emplace_back(isa->name);
  return names;
}

}  // namespace

NB_MODULE(_cpu, m) {
#ifdef NDEBUG
  // Kernels that are still referenced at interpreter exit (globals, a REPL) are no leak.
  nb::set_leak_warnings(false);
#endif
  fused_mlp::find_numpy();
  nb::class_<MlpKernel> kernel(m, "Kernel");
  kernel.def("call_numpy", fused_mlp::call_numpy, nb::arg("x"), nb::arg("out").none() = nb::none())
      .def("run", run, nb::arg("x").noconvert(), nb::arg("y").noconvert())
      .def("run_groups", run_groups, nb::arg("shared"), nb::arg("groups"), nb::arg("y").noconvert())
      .def("run_at", run_at, nb::arg("x"), nb::arg("rows"), nb::arg("y"))
      .def(
          "ids_fit_at",
          [](const MlpKernel& self, std::uintptr_t x, std::size_t rows) {
            return self.ids_fit(reinterpret_cast<const float*>(x), rows);
          },
          nb::arg("x"), nb::arg("rows"))
      .def("strategy", &MlpKernel::strategy, nb::arg("rows"))
      .def("strategies", strategies, nb::arg("most"))
      .def("capsule", capsule)
      .def_prop_ro("isa", &MlpKernel::isa)
      .def_prop_ro("threads", &MlpKernel::threads)
      .def_prop_ro("memory_bytes", &MlpKernel::memory_bytes);
  fused_mlp::register_program(m, kernel);
  nb::class_<fused_mlp::Packer>(m, "Packer")
      .def(nb::init<const std::vector<fused_mlp::Packer::Input>&>(), nb::arg("inputs"))
      .def("call", &fused_mlp::Packer::call, nb::arg("kernel"), nb::arg("given"));
  m.def("usable_isas", usable_isas, nb::arg("int8") = false);
  fused_mlp::register_profile(m);
}
