#include "bindings/python_kernel.hpp"

#include <nanobind/ndarray.h>

namespace nb = nanobind;

namespace fused_mlp {

namespace {

using Array = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>;

// Makes this thread known to Python until it ends: a thread state made and freed for every batch would also
// lose what libraries keep per thread.
class PythonThread {
 public:
  PythonThread() : state_(PyGILState_Ensure()), saved_(PyEval_SaveThread()) {}
  ~PythonThread() {
    if (!python_alive()) return;
    PyEval_RestoreThread(saved_);
    PyGILState_Release(state_);
  }
  PythonThread(const PythonThread&) = delete;
  PythonThread& operator=(const PythonThread&) = delete;

 private:
  PyGILState_STATE state_;
  PyThreadState* saved_;
};

// A numpy view of the batch. It shares the memory, so a kernel that keeps it for too long reads later
// batches, never freed memory.
nb::object view(const BatchBuffer& buffer, std::size_t rows, std::size_t width) {
  auto* owner = new std::shared_ptr<float>(buffer.data());
  nb::capsule keeper(owner, [](void* p) noexcept { delete static_cast<std::shared_ptr<float>*>(p); });
  return nb::cast(Array(owner->get(), {rows, width}, keeper));
}

}  // namespace

void PythonKernel::run(const BatchBuffer& x, std::size_t rows, const BatchBuffer& y,
                       KernelResult& result) noexcept {
  if (!python_alive()) {
    result.failed = true;
    result.error = "the interpreter is gone";
    return;
  }
  thread_local PythonThread thread;
  const nb::gil_scoped_acquire gil;
  try {
    nb::object strategy =
        nb::handle(callable_.get())(view(x, rows, in_features_), view(y, rows, out_features_));
    result.strategy = nb::isinstance<nb::str>(strategy)
                          ? strategies_.insert(nb::cast<nb::str>(strategy).c_str()).first->c_str()
                          : "";
  } catch (const std::exception& error) {  // a Python exception: what() is its traceback
    result.failed = true;
    result.error = error.what();
  }
}

}  // namespace fused_mlp
