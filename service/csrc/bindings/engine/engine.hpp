// SPDX-License-Identifier: Apache-2.0
// The engine as a Python object. Its destructor stops it, without holding the GIL.
#pragma once

#include <memory>

#include "bindings/python_ref.hpp"
#include "engine/engine.hpp"
#include "engine/route/router.hpp"

namespace fused_mlp {

// Reports kernel failures to Python, at most kPerSecond a second, so that a kernel that always fails does not
// spend its time on logging. The others are counted.
class KernelErrorHook {
 public:
  static constexpr int kPerSecond = 10;
  void report(const Lane& lane, std::string_view text) noexcept;
  std::shared_ptr<PyObject> callable;  // guarded by the GIL; may be null

 private:
  std::mutex mutex_;
  Nanos window_start_ = 0;
  int reported_ = 0;
  int suppressed_ = 0;
};

// Reports disputed rows to Python.
struct DisputeHook {
  void report(const std::shared_ptr<Shadow>& shadow, const Dispute& dispute) noexcept;
  std::shared_ptr<PyObject> callable;  // guarded by the GIL; may be null
};

class PythonEngine {
 public:
  PythonEngine(unsigned workers, std::shared_ptr<Clock> clock);
  ~PythonEngine();
  PythonEngine(const PythonEngine&) = delete;
  PythonEngine& operator=(const PythonEngine&) = delete;

  Engine& engine() noexcept { return *engine_; }
  KernelErrorHook& errors() noexcept { return *errors_; }
  DisputeHook& disputes() noexcept { return *disputes_; }

  // Stops all engines. For atexit: after it, no worker may take the GIL.
  static void stop_all();

 private:
  std::shared_ptr<KernelErrorHook> errors_;
  std::shared_ptr<DisputeHook> disputes_;
  std::shared_ptr<Engine> engine_;
};

// A kernel that calls `callable(x, y) -> strategy` once per batch.
std::unique_ptr<Kernel> make_python_kernel(std::shared_ptr<PyObject> callable, std::size_t in_features,
                                           std::size_t out_features);

// A resolved route as Python holds it, and the table that keeps it alive.
struct PythonRoute {
  std::shared_ptr<const RouteTable> table;
  Route route;
};

}  // namespace fused_mlp
