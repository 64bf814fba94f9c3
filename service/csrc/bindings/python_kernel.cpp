// SPDX-License-Identifier: Apache-2.0
#include "bindings/python_kernel.hpp"

#include <nanobind/ndarray.h>

namespace nb = nanobind;

namespace fused_mlp {

namespace {

using Array = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>;

// Keeps one Python thread state for the life of this thread. A new one for every batch would lose the
// thread-local state of Python libraries.
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

// A numpy view of the batch that shares ownership: a kernel that keeps the view reads later batches, never
// freed memory.
nb::object view(const BatchBuffer& buffer, std::size_t first, std::size_t rows, std::size_t width) {
  auto* owner = new std::shared_ptr<float>(buffer.data());
  nb::capsule keeper(owner, [](void* p) noexcept { delete static_cast<std::shared_ptr<float>*>(p); });
  return nb::cast(Array(owner->get() + first * width, {rows, width}, keeper));
}

}  // namespace

void PythonKernel::run(const BatchBuffer& x, std::size_t first, std::size_t rows, const BatchBuffer& y,
                       KernelResult& result) noexcept {
  if (!python_alive()) {
    result.failed = true;
    result.error = "the Python interpreter has shut down";
    return;
  }
  thread_local PythonThread thread;
  const nb::gil_scoped_acquire gil;
  try {
    nb::object strategy =
        nb::handle(callable_.get())(view(x, first, rows, in_features_), view(y, first, rows, out_features_));
    result.strategy = nb::isinstance<nb::str>(strategy)
                          ? strategies_.insert(nb::cast<nb::str>(strategy).c_str()).first->c_str()
                          : "";
  } catch (const std::exception& error) {  // a Python exception: what() is its traceback
    result.failed = true;
    result.error = error.what();
  }
}

}  // namespace fused_mlp
