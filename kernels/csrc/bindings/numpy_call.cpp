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

  Numpy() {
    const nb::module_ module = nb::module_::import_("numpy");
    ndarray = reinterpret_cast<PyTypeObject*>(module.attr("ndarray").inc_ref().ptr());
    empty = module.attr("empty").inc_ref().ptr();
    float32 = module.attr("dtype")("float32").inc_ref().ptr();
  }

  nb::object make(std::size_t rows, std::size_t columns) const {
    const nb::tuple shape = nb::make_tuple(rows, columns);
    PyObject* arguments[] = {shape.ptr(), float32};
    PyObject* array = PyObject_Vectorcall(empty, arguments, 2, nullptr);
    if (array == nullptr) throw nb::python_error();
    return nb::steal(array);
  }
};

const Numpy& numpy() {
  static const Numpy* const found = new Numpy;
  return *found;
}

// Holds the buffer of a numpy array. False unless it is a float32 matrix of that many columns.
class ArrayView {
 public:
  ArrayView(nb::handle array, std::size_t columns, int flags) {
    // No subclasses: the data of a masked array, for example, has another meaning.
    if (Py_TYPE(array.ptr()) != numpy().ndarray) return;
    if (PyObject_GetBuffer(array.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | flags) != 0) {
      PyErr_Clear();  // not contiguous, or read-only
      return;
    }
    held_ = true;
    matches_ = view_.ndim == 2 && view_.itemsize == sizeof(float) && view_.format[0] == 'f' &&
               view_.format[1] == '\0' && static_cast<std::size_t>(view_.shape[1]) == columns;
  }
  ~ArrayView() {
    if (held_) PyBuffer_Release(&view_);
  }
  ArrayView(const ArrayView&) = delete;
  ArrayView& operator=(const ArrayView&) = delete;

  explicit operator bool() const { return matches_; }
  std::size_t rows() const { return static_cast<std::size_t>(view_.shape[0]); }
  float* data() const { return static_cast<float*>(view_.buf); }

 private:
  Py_buffer view_;
  bool held_ = false;
  bool matches_ = false;
};

}  // namespace

nb::object call_numpy(const MlpKernel& kernel, nb::handle x, nb::handle out) {
  const ArrayView input(x, kernel.in_features(), 0);
  if (!input) return nb::none();
  nb::object result = out.is_none() ? numpy().make(input.rows(), kernel.out_features()) : nb::borrow(out);
  const ArrayView output(result, kernel.out_features(), PyBUF_WRITABLE);
  if (!output || output.rows() != input.rows()) return nb::none();
  const nb::gil_scoped_release released;
  kernel.run(input.data(), input.rows(), output.data());
  return result;
}

}  // namespace fused_mlp
