// SPDX-License-Identifier: Apache-2.0
#include "bindings/numpy_call.hpp"

namespace nb = nanobind;

namespace fused_mlp {

namespace {

// The parts of numpy in use, looked up once. Never released: statics may be destroyed after the interpreter.
struct Numpy {
  PyTypeObject* ndarray;
  PyObject* empty;
  PyObject* float32;
  PyObject* int32;
  PyObject* int64;
  PyObject* longlong;

  Numpy() {
    const nb::module_ module = nb::module_::import_("numpy");
    ndarray = reinterpret_cast<PyTypeObject*>(module.attr("ndarray").inc_ref().ptr());
    empty = module.attr("empty").inc_ref().ptr();
    const auto dtype = [&](const char* name) { return module.attr("dtype")(name).inc_ref().ptr(); };
    float32 = dtype("float32");
    int32 = dtype("int32");
    int64 = dtype("int64");
    longlong = dtype("longlong");
  }

  nb::object make(std::size_t rows, std::size_t columns) const {
    const nb::tuple shape = nb::make_tuple(rows, columns);
    PyObject* arguments[] = {shape.ptr(), float32};
    PyObject* array = PyObject_Vectorcall(empty, arguments, 2, nullptr);
    if (array == nullptr) throw nb::python_error();
    return nb::steal(array);
  }
};

const Numpy* known_numpy = nullptr;  // written while the module is imported

const Numpy& numpy() { return *known_numpy; }

// The head of PyArrayObject.
struct ArrayHead {
  PyObject object;
  char* data;
  int dimensions;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  PyObject* base;
  PyObject* dtype;
  int flags;
};
constexpr int kContiguous = 0x1, kAligned = 0x100, kWritable = 0x400;

}  // namespace

void find_numpy() {
  if (known_numpy == nullptr) known_numpy = new Numpy;
}

ArrayView::ArrayView(nb::handle array) {
  const Numpy& known = numpy();
  if (Py_TYPE(array.ptr()) != known.ndarray) return;
  const auto* const head = reinterpret_cast<const ArrayHead*>(array.ptr());
  if ((head->flags & (kContiguous | kAligned)) != (kContiguous | kAligned)) return;
  // Each of these types has one descriptor. An array with another, equal one takes the slow path.
  if (head->dtype == known.float32) {
    type_ = Type::float32;
  } else if (head->dtype == known.int64 || head->dtype == known.longlong) {
    type_ = Type::int64;
  } else if (head->dtype == known.int32) {
    type_ = Type::int32;
  } else {
    return;
  }
  writable_ = (head->flags & kWritable) != 0;
  dimensions_ = head->dimensions;
  data_ = head->data;
  size_ = 1;
  for (int axis = 0; axis < dimensions_; ++axis) size_ *= static_cast<std::size_t>(head->shape[axis]);
  if (dimensions_ > 0) rows_ = static_cast<std::size_t>(head->shape[0]);
  if (dimensions_ > 1) columns_ = static_cast<std::size_t>(head->shape[1]);
}

void ArrayView::fetch_values(nb::handle array) {
  if (Py_TYPE(array.ptr()) != numpy().ndarray) return;
  const auto* const head = reinterpret_cast<const ArrayHead*>(array.ptr());
  __builtin_prefetch(head->shape);
  __builtin_prefetch(head->data);
}

nb::object call_numpy(const MlpKernel& kernel, nb::handle x, nb::handle out) {
  const ArrayView input(x);
  if (!input.is_matrix(kernel.in_features()) || !kernel.ids_fit(input.data<float>(), input.rows())) {
    return nb::none();
  }
  if (out.is_none()) return run_packed(kernel, input.data<float>(), input.rows());
  const ArrayView output(out);
  if (!output.is_matrix(kernel.out_features()) || !output.writable() || output.rows() != input.rows()) {
    return nb::none();
  }
  nb::object result = nb::borrow(out);
  const nb::gil_scoped_release released;
  kernel.run(input.data<float>(), input.rows(), output.data<float>());
  return result;
}

nb::object run_packed(const MlpKernel& kernel, const float* rows, std::size_t count) {
  nb::object result = numpy().make(count, kernel.out_features());
  float* const to = ArrayView(result).data<float>();
  const nb::gil_scoped_release released;
  kernel.run(rows, count, to);
  return result;
}

}  // namespace fused_mlp
