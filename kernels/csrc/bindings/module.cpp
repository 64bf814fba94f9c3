// The Python module fused_mlp.kernels._cpu: argument checks and registration.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/numpy_call.hpp"
#include "bindings/profile_bindings.hpp"
#include "model/kernel.hpp"

namespace nb = nanobind;
using fused_mlp::Activation;
using fused_mlp::MlpKernel;

namespace {

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Activation activation_of(const std::string& name) {
  const auto& names = fused_mlp::kActivationNames;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw std::invalid_argument("unknown activation '" + name + "'");
  return static_cast<Activation>(found - names.begin());
}

struct LayerArguments {
  Matrix weight;
  std::optional<Vector> bias;
  std::optional<Matrix> gate_weight;
  std::optional<Vector> gate_bias;
  std::string activation;
  float negative_slope;
};

fused_mlp::LayerSource source_of(const LayerArguments& layer, std::size_t in) {
  const std::size_t out = layer.weight.shape(0);
  const auto expect = [](bool fits, const char* what) {
    if (!fits) throw std::invalid_argument(std::string(what) + ": its shape does not match the layer");
  };
  const auto vector = [&](const std::optional<Vector>& v, const char* what) -> const float* {
    if (!v) return nullptr;
    expect(v->shape(0) == out, what);
    return v->data();
  };
  expect(layer.weight.shape(1) == in && in > 0 && out > 0, "weight");
  const float* gate = nullptr;
  if (layer.gate_weight) {
    expect(layer.gate_weight->shape(0) == out && layer.gate_weight->shape(1) == in, "gate_weight");
    gate = layer.gate_weight->data();
  }
  const Activation activation = activation_of(layer.activation);
  if (!fused_mlp::is_elementwise(activation)) {
    throw std::invalid_argument("activation '" + layer.activation + "' can only follow the last layer");
  }
  return {
      layer.weight.data(), vector(layer.bias, "bias"), gate, vector(layer.gate_bias, "gate_bias"), in, out,
      activation,          layer.negative_slope};
}

void construct(MlpKernel* self, const std::vector<LayerArguments>& layers,
               const std::string& output_activation, float output_slope, unsigned threads,
               const std::optional<std::string>& isa) {
  std::vector<fused_mlp::LayerSource> sources;
  for (const LayerArguments& layer : layers) {
    const std::size_t in = sources.empty() ? layer.weight.shape(1) : sources.back().out;
    sources.push_back(source_of(layer, in));
  }
  new (self) MlpKernel(sources, activation_of(output_activation), output_slope, threads,
                       isa ? isa->c_str() : nullptr);
}

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

std::vector<std::string> usable_isas() {
  std::size_t count = 0;
  const fused_mlp::Isa* const* list = fused_mlp::usable_isas(&count);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.emplace_back(list[i]->name);
  return names;
}

}  // namespace

NB_MODULE(_cpu, m) {
#ifdef NDEBUG
  // Kernels that are still referenced at interpreter exit (globals, a REPL) are no leak.
  nb::set_leak_warnings(false);
#endif
  nb::class_<LayerArguments>(m, "Layer")
      .def(
          "__init__",
          [](LayerArguments* self, Matrix weight, std::optional<Vector> bias,
             std::optional<Matrix> gate_weight, std::optional<Vector> gate_bias, std::string activation,
             float negative_slope) {
            new (self) LayerArguments{std::move(weight),    std::move(bias),       std::move(gate_weight),
                                      std::move(gate_bias), std::move(activation), negative_slope};
          },
          nb::arg("weight"), nb::arg("bias").none(), nb::arg("gate_weight").none(),
          nb::arg("gate_bias").none(), nb::arg("activation"), nb::arg("negative_slope"));
  nb::class_<MlpKernel>(m, "Kernel")
      .def("__init__", construct, nb::arg("layers"), nb::arg("output_activation"), nb::arg("output_slope"),
           nb::arg("threads"), nb::arg("isa").none() = nb::none())
      .def("call_numpy", fused_mlp::call_numpy, nb::arg("x"), nb::arg("out").none() = nb::none())
      .def("run", run, nb::arg("x").noconvert(), nb::arg("y").noconvert())
      .def("run_at", run_at, nb::arg("x"), nb::arg("rows"), nb::arg("y"))
      .def("strategy", &MlpKernel::strategy, nb::arg("rows"))
      .def("capsule", capsule)
      .def_prop_ro("isa", &MlpKernel::isa)
      .def_prop_ro("threads", &MlpKernel::threads);
  m.def("usable_isas", usable_isas);
  fused_mlp::register_profile(m);
}
