// SPDX-License-Identifier: Apache-2.0
// References from C++ to Python objects that may be released on any thread, with or without the GIL. After
// interpreter shutdown they are leaked.
#pragma once

#include <Python.h>

#include <memory>

namespace fused_mlp {

// Whether the GIL may still be taken.
bool python_alive() noexcept;

// Holds the GIL unless the interpreter has shut down.
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

// adopt takes over the caller's reference, hold adds one (call it with the GIL). Released on any thread.
std::shared_ptr<PyObject> adopt(PyObject* object);
std::shared_ptr<PyObject> hold(PyObject* object);

}  // namespace fused_mlp
