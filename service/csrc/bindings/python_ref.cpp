// SPDX-License-Identifier: Apache-2.0
#include "bindings/python_ref.hpp"

namespace fused_mlp {

bool python_alive() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() && !Py_IsFinalizing();
#else
  return Py_IsInitialized() && !_Py_IsFinalizing();
#endif
}

GilIfAlive::GilIfAlive() noexcept : held_(python_alive()) {
  if (held_) state_ = PyGILState_Ensure();
}

GilIfAlive::~GilIfAlive() {
  if (held_) PyGILState_Release(state_);
}

std::shared_ptr<PyObject> adopt(PyObject* object) {
  return {object, [](PyObject* held) {
            if (const GilIfAlive gil; gil) Py_DECREF(held);
          }};
}

std::shared_ptr<PyObject> hold(PyObject* object) { return adopt(Py_NewRef(object)); }

}  // namespace fused_mlp
