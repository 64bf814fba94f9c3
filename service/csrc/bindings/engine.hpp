// The engine as Python holds it: stops without the GIL, also when Python forgets to.
#pragma once

#include <memory>

#include "bindings/python_ref.hpp"
#include "engine/engine.hpp"

namespace fused_mlp {

// Where failures of kernels are reported: at most kPerSecond a second, the rest counted, because a kernel
// that always fails must not spend its threads on logging.
class KernelErrorHook {
 public:
  static constexpr int kPerSecond = 10;
  void report(const Lane& lane, std::string_view text) noexcept;
  std::shared_ptr<PyObject> callable;  // guarded by the GIL; null: nobody listens

 private:
  std::mutex mutex_;
  Nanos window_start_ = 0;
  int reported_ = 0;
  int suppressed_ = 0;
};

// Where the first mismatch of a shadow is reported.
struct MismatchHook {
  void report(const std::shared_ptr<Shadow>& shadow, const Difference& difference) noexcept;
  std::shared_ptr<PyObject> callable;  // guarded by the GIL; null: nobody listens
};

class PythonEngine {
 public:
  PythonEngine(unsigned workers, std::shared_ptr<Clock> clock);
  ~PythonEngine();
  PythonEngine(const PythonEngine&) = delete;
  PythonEngine& operator=(const PythonEngine&) = delete;

  Engine& engine() noexcept { return *engine_; }
  KernelErrorHook& errors() noexcept { return *errors_; }
  MismatchHook& mismatches() noexcept { return *mismatches_; }

  // Stops every engine that still runs. For atexit: a worker must not ask for the GIL after that.
  static void stop_all();

 private:
  std::shared_ptr<KernelErrorHook> errors_;
  std::shared_ptr<MismatchHook> mismatches_;
  std::shared_ptr<Engine> engine_;
};

}  // namespace fused_mlp
