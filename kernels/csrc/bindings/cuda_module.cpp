// SPDX-License-Identifier: Apache-2.0
// The Python module fused_mlp.kernels._cuda: argument checks and registration.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/kernel.hpp"

namespace nb = nanobind;
using namespace fused_mlp::cuda;

namespace {

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
// cubin, PTX, name, threads of a block, bytes of shared memory
using Code = std::tuple<nb::bytes, std::string, std::string, unsigned, unsigned>;
// kernel, rows of a block, blocks of columns, arguments (kind, value)
using LaunchTuple =
    std::tuple<std::size_t, unsigned, unsigned, std::vector<std::pair<std::string, std::uint64_t>>,
               std::size_t, std::size_t, bool>;

constexpr std::array<std::string_view, 6> kKinds = {"x", "y", "scratch", "address", "rows", "null"};

Argument argument_of(const std::pair<std::string, std::uint64_t>& given) {
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
    if (given.first == kKinds[kind]) return {static_cast<Argument::Kind>(kind), given.second};
  }
  throw nb::value_error("argument: expected x, y, scratch, address, rows or null");
}

void make_kernel(CudaKernel* self, std::shared_ptr<Device> device, std::string label, std::size_t in_features,
                 std::size_t out_features, const std::vector<std::pair<std::size_t, std::size_t>>& scratch,
                 const std::vector<Code>& kernels, const std::vector<LaunchTuple>& launches,
                 unsigned contexts, nb::handle) {
  Plan plan{std::move(label), in_features, out_features, {}, {}, {}};
  for (const auto& [row_bytes, max_rows] : scratch) plan.scratch.push_back({row_bytes, max_rows});
  for (const auto& [cubin, ptx, name, threads, shared] : kernels) {
    plan.kernels.push_back({std::string(cubin.c_str(), cubin.size()), ptx, name, threads, shared});
  }
  for (const auto& [kernel, block_rows, column_blocks, arguments, least, most, dependent] : launches) {
    Launch launch{kernel, block_rows, column_blocks, {}, least, most, dependent};
    for (const auto& argument : arguments) launch.arguments.push_back(argument_of(argument));
    plan.launches.push_back(std::move(launch));
  }
  const nb::gil_scoped_release released;
  new (self) CudaKernel(std::move(device), std::move(plan), contexts);
}

bool run(CudaKernel& kernel, const Matrix& x, const Result& y) {
  const Plan& plan = kernel.plan();
  if (x.shape(1) != plan.in_features || y.shape(1) != plan.out_features || x.shape(0) != y.shape(0))
    return false;
  const nb::gil_scoped_release released;
  kernel.run(x.data(), x.shape(0), y.data());
  return true;
}

// The capsule keeps the kernel's Python object alive, and with it the weights.
nb::object capsule(nb::handle self) {
  PyObject* made = PyCapsule_New(
      const_cast<fused_mlp_kernel*>(nb::cast<const CudaKernel&>(self).api()), FUSED_MLP_KERNEL_CAPSULE,
      [](PyObject* c) { Py_XDECREF(static_cast<PyObject*>(PyCapsule_GetContext(c))); });
  if (made == nullptr) throw nb::python_error();
  PyCapsule_SetContext(made, self.inc_ref().ptr());
  return nb::steal(made);
}

// Called with the text of the error, on the thread that met it.
void on_lost(Device& device, nb::callable tell) {
  // Never released: the device may outlive the interpreter.
  device.on_lost([callable = tell.release()](const std::string& why) {
    if (Py_IsInitialized() == 0) return;
    const nb::gil_scoped_acquire acquired;
    try {
      callable(why);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("on_lost");
    }
  });
}

// Why there is no GPU to use; empty if there is one.
std::string unavailable() {
  try {
    return Device::count() > 0 ? "" : "the NVIDIA driver sees no GPU";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

NB_MODULE(_cuda, m) {
#ifdef NDEBUG
  // Kernels that are still referenced at interpreter exit (globals, a REPL) are no leak.
  nb::set_leak_warnings(false);
#endif
  nb::exception<DriverError>(m, "DriverError", PyExc_RuntimeError);
  nb::class_<Device>(m, "Device")
      .def(nb::new_(&Device::open), nb::arg("ordinal"))
      .def_prop_ro("name", &Device::name)
      .def_prop_ro("capability", &Device::capability)
      .def("on_lost", on_lost, nb::arg("tell"))
      .def("set_cores", &Device::set_cores, nb::arg("cores"));
  nb::class_<DeviceArray>(m, "DeviceArray")
      .def(
          "__init__",
          [](DeviceArray* self, std::shared_ptr<Device> device, const Bytes& array) {
            new (self) DeviceArray(std::move(device), array.data(), array.nbytes());
          },
          nb::arg("device"), nb::arg("array").noconvert())
      .def_prop_ro("address", &DeviceArray::address)
      .def_prop_ro("nbytes", &DeviceArray::bytes);
  nb::class_<CudaKernel>(m, "Kernel")
      .def("__init__", make_kernel, nb::arg("device"), nb::arg("label"), nb::arg("in_features"),
           nb::arg("out_features"), nb::arg("scratch"), nb::arg("kernels"), nb::arg("launches"),
           nb::arg("contexts"), nb::arg("owner"), nb::keep_alive<1, 10>())
      .def("run", run, nb::arg("x").noconvert(), nb::arg("y").noconvert())
      .def("replay_graphs", &CudaKernel::replay_graphs, nb::call_guard<nb::gil_scoped_release>())
      .def("capsule", capsule)
      .def_prop_ro("device_bytes", &CudaKernel::device_bytes);
  m.def("unavailable", unavailable);
  m.def("device_count", &Device::count);
}
