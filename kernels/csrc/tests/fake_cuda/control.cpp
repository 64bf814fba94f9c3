// SPDX-License-Identifier: Apache-2.0
#include "control.h"

#include "state.hpp"

using namespace fake_cuda;

namespace {

void add_kernel(const char* name, fake_cuda_kernel kernel) { fake().executor.add(name, kernel); }

void fail(const char* symbol, int code, int skip, int times) {
  const std::lock_guard lock(fake().mutex);
  fake().failures[symbol] = {code, skip, times};
}

void set_delay_us(unsigned most) { fake().pace.delay_us = most; }

void hold(int held) {
  {
    const std::lock_guard lock(fake().pace.mutex);
    fake().pace.held = held != 0;
  }
  fake().pace.changed.notify_all();
}

unsigned calls(const char* symbol) {
  const std::lock_guard lock(fake().mutex);
  return fake().calls[symbol];
}

fake_cuda_alive alive() {
  std::size_t contexts = 0;
  for (const Context& context : fake().contexts) contexts += static_cast<std::size_t>(context.references);
  return {fake().memory.count(),
          fake().modules.count(),
          fake().streams.count(),
          fake().events.count(),
          fake().graphs.count(),
          fake().executables.count(),
          contexts};
}

void reset() {
  const std::lock_guard lock(fake().mutex);
  fake().failures.clear();
  fake().calls.clear();
  for (Context& context : fake().contexts) context.sticky = 0;
}

}  // namespace

EXPORT const fake_cuda_control* fake_cuda_controls() {
  static constexpr fake_cuda_control control = {add_kernel, fail, set_delay_us, hold, calls, alive, reset};
  return &control;
}
