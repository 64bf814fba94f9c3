// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.hpp"

#include <dlfcn.h>

#include <cstdlib>

namespace fused_mlp::cuda {

namespace {

struct Loaded {
  Driver driver;
  std::string error;  // empty if it can be used
};

// Never closed: kernels may outlive any static.
Loaded load() {
  Loaded made;
  const char* const other = std::getenv("FUSED_MLP_LIBCUDA");
  const char* const name = other != nullptr && *other != '\0' ? other : "libcuda.so.1";
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    made.error = std::string("no NVIDIA driver: ") + dlerror();
    return made;
  }
#define FUSED_MLP_LOAD(member, symbol, parameters)                                                           \
  made.driver.member = reinterpret_cast<decltype(made.driver.member)>(dlsym(library, symbol));               \
  if (made.driver.member == nullptr) {                                                                       \
    made.error = std::string(name) + " has no " symbol ": expected the NVIDIA driver of CUDA 12.3 or later"; \
    return made;                                                                                             \
  }
  FUSED_MLP_CUDA_FUNCTIONS(FUSED_MLP_LOAD)
#undef FUSED_MLP_LOAD
  if (const CUresult code = made.driver.init(0); code != kSuccess) {
    made.error = "the NVIDIA driver cannot be used: " + made.driver.describe(code);
  }
  return made;
}

}  // namespace

const Driver& Driver::get() {
  static const Loaded* const loaded = new Loaded(load());
  if (!loaded->error.empty()) throw std::runtime_error(loaded->error);
  return loaded->driver;
}

std::string Driver::describe(CUresult code) const {
  const char *name = nullptr, *text = nullptr;
  error_name(code, &name);
  error_string(code, &text);
  return (name != nullptr ? std::string(name) : "error " + std::to_string(code)) +
         (text != nullptr ? std::string(": ") + text : "");
}

DriverError::DriverError(CUresult code, const char* action)
    : std::runtime_error(std::string("cannot ") + action + ": " + Driver::get().describe(code)),
      code_(code) {}

}  // namespace fused_mlp::cuda
