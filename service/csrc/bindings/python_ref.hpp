// Python objects held by C++ that may let go of them on any thread, with the GIL or without, also while the
// interpreter is going down (then they are left to it).
#pragma once

#include <Python.h>

#include <memory>

namespace fused_mlp {

// Whether the GIL may still be taken.
bool python_alive() noexcept;

// The GIL, taken unless the interpreter is gone.
class GilIfAlive {
 public:
  GilIfAlive() noexcept;
  ~GilIfAlive();
  GilIfAlive(const GilIfAlive&) = delete;
  GilIfAlive& operator=(const GilIfAlive&) = delete;
  explicit operator bool() const noexcept { return held_; }

 private:
  bool held_;
  PyGILState_STATE state_{};
};

// Owns a reference the caller gives up (adopt) or a new one (hold, with the GIL). Freed on any thread.
std::shared_ptr<PyObject> adopt(PyObject* object);
std::shared_ptr<PyObject> hold(PyObject* object);

}  // namespace fused_mlp
