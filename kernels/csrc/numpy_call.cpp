#include "numpy_call.hpp"

namespace nb = nanobind;

namespace fused_mlp {

namespace {

// What we need of numpy, looked up once. Never released: the interpreter may be gone when statics are.
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

// A float32 matrix of that many columns, borrowed from an array for as long as this lives.
class Matrix {
 public:
  Matrix(nb::handle array, std::size_t columns, int flags) {
    // Exactly ndarray: a subclass (a masked array, say) may mean something else by its data.
    if (Py_TYPE(array.ptr()) != numpy().ndarray) return;
    if (PyObject_GetBuffer(array.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | flags) != 0) {
      PyErr_Clear();  // not contiguous, or read-only
      return;
    }
    held_ = true;
    fits_ = view_.ndim == 2 && view_.itemsize == sizeof(float) && view_.format[0] == 'f' &&
            view_.format[1] == '\0' && static_cast<std::size_t>(view_.shape[1]) == columns;
  }
  ~Matrix() {
    if (held_) PyBuffer_Release(&view_);
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  explicit operator bool() const { return fits_; }
  std::size_t rows() const { return static_cast<std::size_t>(view_.shape[0]); }
  float* data() const { return static_cast<float*>(view_.buf); }

 private:
  Py_buffer view_;
  bool held_ = false;
  bool fits_ = false;
};

}  // namespace

nb::object call_numpy(const MlpKernel& kernel, nb::handle x, nb::handle out) {
  const Matrix input(x, kernel.in_features(), 0);
  if (!input) return nb::none();
  nb::object result = out.is_none() ? numpy().make(input.rows(), kernel.out_features()) : nb::borrow(out);
  const Matrix output(result, kernel.out_features(), PyBUF_WRITABLE);
  if (!output || output.rows() != input.rows()) return nb::none();
  const nb::gil_scoped_release released;
  kernel.run(input.data(), input.rows(), output.data());
  return result;
}

}  // namespace fused_mlp
