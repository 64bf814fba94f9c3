// SPDX-License-Identifier: Apache-2.0
// The Python module fused_mlp.kernels._cpu: argument checks and registration.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/numpy_call.hpp"
#include "bindings/profile_bindings.hpp"
#include "bindings/program_bindings.hpp"
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
    const char* name = kernel.strategy(rows);
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
  nb::class_<MlpKernel> kernel(m, "Kernel");
  kernel.def("call_numpy", fused_mlp::call_numpy, nb::arg("x"), nb::arg("out").none() = nb::none())
      .def("run", run, nb::arg("x").noconvert(), nb::arg("y").noconvert())
      .def("run_at", run_at, nb::arg("x"), nb::arg("rows"), nb::arg("y"))
      .def("strategy", &MlpKernel::strategy, nb::arg("rows"))
      .def("strategies", strategies, nb::arg("most"))
      .def("capsule", capsule)
      .def_prop_ro("isa", &MlpKernel::isa)
      .def_prop_ro("threads", &MlpKernel::threads)
      .def_prop_ro("memory_bytes", &MlpKernel::memory_bytes);
  fused_mlp::register_program(m, kernel);
  m.def("usable_isas", usable_isas, nb::arg("int8") = false);
  fused_mlp::register_profile(m);
}
