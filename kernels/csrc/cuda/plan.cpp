// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan.hpp"

#include <algorithm>
#include <array>

namespace fused_mlp::cuda {

namespace {

constexpr std::size_t kMaxArguments = 24;
constexpr unsigned kMaxThreads = 1024;

void expect(bool condition, const char* text) {
  if (!condition) throw std::invalid_argument(std::string("launch plan: expected ") + text);
}

void check_plan(const Plan& plan) {
  expect(plan.in_features > 0 && plan.out_features > 0, "features of at least 1");
  expect(!plan.launches.empty(), "at least one launch");
  for (const KernelCode& kernel : plan.kernels) {
    expect(!kernel.cubin.empty() || !kernel.ptx.empty(), "machine code");
    expect(kernel.threads > 0 && kernel.threads <= kMaxThreads, "1 to 1024 threads in a block");
  }
  for (const Launch& launch : plan.launches) {
    expect(launch.kernel < plan.kernels.size(), "launches of kernels that are there");
    expect(launch.block_rows > 0 && launch.column_blocks > 0, "blocks of at least one row and column");
    expect(launch.arguments.size() <= kMaxArguments, "at most 24 arguments");
    expect(!launch.dependent || &launch != &plan.launches.front(), "a launch before one that depends on it");
    for (const Argument& argument : launch.arguments) {
      if (argument.kind != Argument::kScratch) continue;
      expect(argument.value < plan.scratch.size(), "arguments in scratch buffers that are there");
      expect(launch.max_rows <= plan.scratch[argument.value].max_rows,
             "scratch buffers for all rows of a launch");
    }
  }
}

// Whether PTX may run where a cubin does not: it is for another GPU, or none.
bool is_for_another_gpu(CUresult code) { return code == kNoBinaryForGpu || code == kInvalidImage; }

Module load(const Driver& driver, const KernelCode& kernel) {
  CUmodule module = nullptr;
  CUresult code = kNoBinaryForGpu;
  if (!kernel.cubin.empty()) code = driver.module_load(&module, kernel.cubin.data());
  if (is_for_another_gpu(code) && !kernel.ptx.empty()) code = driver.module_load(&module, kernel.ptx.c_str());
  check(code, ("load the kernel " + kernel.name).c_str());
  return {driver, module};
}

}  // namespace

LoadedPlan::LoadedPlan(const Driver& driver, Plan plan) : plan_(std::move(plan)) {
  check_plan(plan_);
  for (const KernelCode& kernel : plan_.kernels) {
    modules_.push_back(load(driver, kernel));
    CUfunction function = nullptr;
    check(driver.module_function(&function, modules_.back().get(), kernel.name.c_str()),
          ("find the kernel " + kernel.name).c_str());
    if (kernel.shared_bytes > kStaticSharedLimit) {
      check(driver.function_set(function, kMaxDynamicSharedBytes, static_cast<int>(kernel.shared_bytes)),
            ("get shared memory for the kernel " + kernel.name).c_str());
    }
    functions_.push_back(function);
  }
  for (KernelCode& kernel : plan_.kernels) {  // the driver has its own copy
    kernel.cubin = {};
    kernel.ptx = {};
  }
}

std::size_t LoadedPlan::traffic(std::size_t rows) const noexcept {
  std::size_t bytes = 0;
  for (const Launch& launch : plan_.launches) {
    if (!launch.runs(rows)) continue;
    // Once for a launch: its input stands again where a value to combine with would be.
    const auto touches = [&](Argument::Kind kind) {
      return std::any_of(launch.arguments.begin(), launch.arguments.end(),
                         [&](const Argument& argument) { return argument.kind == kind; });
    };
    if (touches(Argument::kX)) bytes += launch.column_blocks * x_bytes(rows);
    if (touches(Argument::kY)) bytes += y_bytes(rows);
  }
  return bytes;
}

void LoadedPlan::enqueue(WorkSink& sink, const Buffers& buffers, std::uint32_t rows) const {
  for (const Launch& launch : plan_.launches) {
    if (!launch.runs(rows)) continue;
    std::array<std::uint64_t, kMaxArguments> values{};
    std::array<void*, kMaxArguments> addresses;
    for (std::size_t i = 0; i < launch.arguments.size(); ++i) {
      const Argument& argument = launch.arguments[i];
      addresses[i] = &values[i];
      switch (argument.kind) {
        case Argument::kX:
          values[i] = buffers.x;
          break;
        case Argument::kY:
          values[i] = buffers.y;
          break;
        case Argument::kScratch:
          values[i] = buffers.scratch[argument.value];
          break;
        case Argument::kAddress:
          values[i] = argument.value;
          break;
        case Argument::kRows:
          values[i] = rows;  // the kernel reads the low half
          break;
        case Argument::kNull:
          break;
      }
    }
    const KernelCode& kernel = plan_.kernels[launch.kernel];
    const unsigned blocks = (rows + launch.block_rows - 1) / launch.block_rows * launch.column_blocks;
    sink.launch(functions_[launch.kernel], blocks, kernel.threads, kernel.shared_bytes, addresses.data(),
                launch.dependent);
  }
}

}  // namespace fused_mlp::cuda
