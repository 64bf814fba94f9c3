// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include "bindings/engine/engine.hpp"
#include "bindings/errors.hpp"
#include "engine/reaper.hpp"

namespace nb = nanobind;

namespace fused_mlp {

namespace {

std::mutex live_mutex;
std::vector<std::weak_ptr<Engine>> live_engines;  // guarded by live_mutex

void register_live(const std::shared_ptr<Engine>& engine) {
  const std::lock_guard lock(live_mutex);
  std::erase_if(live_engines, [](const std::weak_ptr<Engine>& e) { return e.expired(); });
  live_engines.push_back(engine);
}

}  // namespace

void KernelErrorHook::report(const Lane& lane, std::string_view text) noexcept {
  int missed = 0;
  {
    const std::lock_guard lock(mutex_);
    const Nanos now = SteadyClock().now();
    if (now - window_start_ >= 1'000'000'000) {
      window_start_ = now;
      reported_ = 0;
    }
    if (reported_ >= kPerSecond) {
      ++suppressed_;
      return;
    }
    ++reported_;
    missed = std::exchange(suppressed_, 0);
  }
  const GilIfAlive gil;
  if (!gil || !callable) return;
  try {
    std::string line(text);
    if (missed > 0) line += "\n(" + std::to_string(missed) + " more failed batches were not reported)";
    const std::shared_ptr<PyObject> listener = callable;  // the call may replace `callable`
    nb::handle(listener.get())(lane.options.name.c_str(), text_of(line));
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("on_kernel_error");
  } catch (const std::exception&) {  // out of memory: kernel_errors counts it
  }
}

void DisputeHook::report(const std::shared_ptr<Shadow>& shadow, const Dispute& dispute) noexcept {
  const GilIfAlive gil;
  if (!gil || !callable) return;
  const auto bytes = [](const std::vector<float>& values) {
    return nb::bytes(values.data(), values.size() * sizeof(float));
  };
  try {
    const std::shared_ptr<PyObject> listener = callable;  // the call may replace `callable`
    nb::handle(listener.get())(
        shadow, dispute.epoch, dispute.difference.absolute, dispute.difference.relative,
        nb::make_tuple(bytes(dispute.x), bytes(dispute.fused), bytes(dispute.unfused)));
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("on_dispute");
  } catch (const std::exception&) {  // out of memory: the dispute is not judged
  }
}

PythonEngine::PythonEngine(unsigned workers, std::shared_ptr<Clock> clock)
    : errors_(std::make_shared<KernelErrorHook>()), disputes_(std::make_shared<DisputeHook>()) {
  EngineOptions options;
  options.workers = workers;
  options.clock = std::move(clock);
  options.on_kernel_error = [errors = errors_](const Lane& lane, std::string_view text) {
    errors->report(lane, text);
  };
  options.on_dispute = [disputes = disputes_](const std::shared_ptr<Shadow>& shadow, const Dispute& dispute) {
    disputes->report(shadow, dispute);
  };
  engine_ = std::make_shared<Engine>(std::move(options));
  register_live(engine_);
}

PythonEngine::~PythonEngine() {
  const nb::gil_scoped_release unlocked;  // a worker may need the GIL to finish its batch
  engine_->stop();
}

void PythonEngine::stop_all() {
  std::vector<std::shared_ptr<Engine>> engines;
  {
    const std::lock_guard lock(live_mutex);
    for (const std::weak_ptr<Engine>& weak : live_engines) {
      if (std::shared_ptr<Engine> engine = weak.lock()) engines.push_back(std::move(engine));
    }
    live_engines.clear();
  }
  for (const std::shared_ptr<Engine>& engine : engines) engine->stop();
  join_abandoned_workers();
  wait_for_reaper();
}

}  // namespace fused_mlp
