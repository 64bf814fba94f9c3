// SPDX-License-Identifier: Apache-2.0
// A kernel implemented by a Python callable `run(x, y) -> strategy`, called with the GIL once per batch.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <set>
#include <string>

#include "bindings/engine/engine.hpp"
#include "engine/run/kernel.hpp"

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

class PythonKernel final : public Kernel {
 public:
  PythonKernel(std::shared_ptr<PyObject> callable, std::size_t in_features, std::size_t out_features)
      : callable_(std::move(callable)), in_features_(in_features), out_features_(out_features) {}
  void run(const BatchBuffer& x, std::size_t first, std::size_t rows, const BatchBuffer& y,
           KernelResult& result) noexcept override;
  bool needs_worker() const noexcept override { return true; }

 private:
  std::shared_ptr<PyObject> callable_;
  std::size_t in_features_;
  std::size_t out_features_;
  std::set<std::string> strategies_;  // all names returned so far, which results point to; guarded by the GIL
};

void PythonKernel::run(const BatchBuffer& x, std::size_t first, std::size_t rows, const BatchBuffer& y,
                       KernelResult& result) noexcept {
  if (!python_alive()) {
    return result.fail("the Python interpreter has shut down");
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
    result.fail(error.what());
  }
}

}  // namespace

std::unique_ptr<Kernel> make_python_kernel(std::shared_ptr<PyObject> callable, std::size_t in_features,
                                           std::size_t out_features) {
  return std::make_unique<PythonKernel>(std::move(callable), in_features, out_features);
}

}  // namespace fused_mlp
