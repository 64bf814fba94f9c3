// SPDX-License-Identifier: Apache-2.0
// The launcher on the fake driver of fake_cuda/: which calls a batch makes, what it answers, what a failure
// leaves behind. Needs FUSED_MLP_LIBCUDA to name the fake.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cuda/kernel.hpp"
#include "fake_cuda/control.h"

using namespace fused_mlp::cuda;

namespace {

// A function of the fake driver, which the launcher need not know.
template <class Function>
Function* symbol(const char* name) {
  static void* const library = [] {
    const char* const path = std::getenv("FUSED_MLP_LIBCUDA");
    return path != nullptr ? dlopen(path, RTLD_NOW) : nullptr;
  }();
  if (library == nullptr) throw std::runtime_error("FUSED_MLP_LIBCUDA: expected the fake driver");
  return reinterpret_cast<Function*>(dlsym(library, name));
}

const fake_cuda_control& fake() {
  static const fake_cuda_control* const found = symbol<const fake_cuda_control*()>("fake_cuda_controls")();
  return *found;
}

// The calls that torch makes when it records a graph.
CUresult synchronize_device() { return symbol<CUresult()>("cuCtxSynchronize")(); }
CUresult begin_capture(CUstream stream) {
  return symbol<CUresult(CUstream, int)>("cuStreamBeginCapture_v2")(stream, 1);  // thread-local
}
CUresult end_capture(CUstream stream) {
  CUgraph graph = nullptr;
  const CUresult code = symbol<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture")(stream, &graph);
  if (code == kSuccess) Driver::get().graph_destroy(graph);
  return code;
}

constexpr std::size_t kIn = 5, kOut = 3;

// y[r][j] = (j + 1) * factor * sum(x[r]); blocks of 16 rows. Parameters: x, weights (the factor), y, rows.
void project(const fake_cuda_launch* launch) {
  const auto rows = static_cast<std::uint32_t>(launch->parameters[3]);
  if (launch->grid[0] != (rows + 15) / 16 || launch->block[0] != 32) return;  // y stays poisoned
  const auto* x = static_cast<const float*>(launch->at(launch->parameters[0], rows * kIn * sizeof(float)));
  const auto* factor = static_cast<const float*>(launch->at(launch->parameters[1], sizeof(float)));
  auto* y = static_cast<float*>(launch->at(launch->parameters[2], rows * kOut * sizeof(float)));
  if (x == nullptr || factor == nullptr || y == nullptr) return;
  for (std::uint32_t r = 0; r < rows; ++r) {
    float sum = 0;
    for (std::size_t i = 0; i < kIn; ++i) sum += x[r * kIn + i];
    for (std::size_t j = 0; j < kOut; ++j) y[r * kOut + j] = static_cast<float>(j + 1) * *factor * sum;
  }
}

// h = x + 1, one row per block. Parameters: x, h, rows.
void increment(const fake_cuda_launch* launch) {
  const auto rows = static_cast<std::uint32_t>(launch->parameters[2]);
  if (launch->grid[0] != rows) return;
  const auto* x = static_cast<const float*>(launch->at(launch->parameters[0], rows * kIn * sizeof(float)));
  auto* h = static_cast<float*>(launch->at(launch->parameters[1], rows * kIn * sizeof(float)));
  if (x == nullptr || h == nullptr) return;
  for (std::size_t i = 0; i < rows * kIn; ++i) h[i] = x[i] + 1;
}

// Writes behind the end of y.
void overrun(const fake_cuda_launch* launch) {
  (void)launch->at(launch->parameters[2], (launch->parameters[3] + 1) * 8192 * kOut * sizeof(float));
}

std::string ptx_of(const std::string& name, int pointers) {
  std::string text = ".version 8.0\n.target sm_80\n.visible .entry " + name + "(\n";
  for (int i = 0; i < pointers; ++i)
    text += ".param .u64 .ptr .global .align 1 p" + std::to_string(i) + ",\n";
  return text + ".param .u32 rows\n)\n{ ret; }\n";
}

struct Weights {
  std::shared_ptr<Device> device;
  DeviceArray memory;

  explicit Weights(float factor, int ordinal = 0)
      : device(Device::open(ordinal)), memory(device, &factor, sizeof factor) {}
};

Launch project_from(Argument::Kind source, const Weights& weights) {
  return {0,
          16,
          1,
          {{source}, {Argument::kAddress, weights.memory.address()}, {Argument::kY}, {Argument::kRows}}};
}

Plan one_launch(const Weights& weights, const std::string& kernel = "project") {
  return {"whole/16",
          kIn,
          kOut,
          {},
          {{"", ptx_of(kernel, 3), kernel, 32, 0}},
          {project_from(Argument::kX, weights)}};
}

Plan two_launches(const Weights& weights) {
  Plan plan = one_launch(weights);
  plan.label = "layered/16";
  plan.scratch = {{kIn * sizeof(float)}};
  plan.kernels.push_back({"", ptx_of("increment", 2), "increment", 32, 64 * 1024});
  plan.launches = {{1, 1, 1, {{Argument::kX}, {Argument::kScratch}, {Argument::kRows}}},
                   project_from(Argument::kScratch, weights)};
  return plan;
}

std::vector<float> rows_of(std::size_t rows, unsigned seed) {
  std::vector<float> x(rows * kIn);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 7 + seed * 13) % 64);
  return x;
}

// Whole numbers: sums are exact.
void check_batch(CudaKernel& kernel, std::size_t rows, unsigned seed, float factor, float added = 0) {
  const std::vector<float> x = rows_of(rows, seed);
  std::vector<float> y(rows * kOut, std::numeric_limits<float>::quiet_NaN());
  kernel.run(x.data(), rows, y.data());
  for (std::size_t r = 0; r < rows; ++r) {
    float sum = added * kIn;
    for (std::size_t i = 0; i < kIn; ++i) sum += x[r * kIn + i];
    for (std::size_t j = 0; j < kOut; ++j) CHECK(y[r * kOut + j] == static_cast<float>(j + 1) * factor * sum);
  }
}

CUresult code_of(CudaKernel& kernel, std::size_t rows) {
  std::vector<float> x(rows * kIn), y(rows * kOut);
  try {
    kernel.run(x.data(), rows, y.data());
  } catch (const DriverError& error) {
    return error.code();
  }
  return kSuccess;
}

void wait_for_calls(const char* symbol, unsigned calls) {
  while (fake().calls(symbol) < calls) std::this_thread::yield();
}

bool nothing_is_alive() {
  const fake_cuda_alive alive = fake().alive();
  return alive.allocations + alive.modules + alive.streams + alive.events + alive.graphs + alive.executables +
             alive.contexts ==
         0;
}

[[maybe_unused]] const bool kRegistered = [] {
  fake().add_kernel("project", project);
  fake().add_kernel("increment", increment);
  fake().add_kernel("overrun", overrun);
  return true;
}();

TEST_CASE("a small batch is one launch without copies") {
  const Weights weights(2);
  CudaKernel kernel(weights.device, one_launch(weights), 1);
  for (std::size_t rows : {1u, 15u, 16u, 17u, 64u}) {
    fake().reset();
    check_batch(kernel, rows, 1, 2);
    CHECK(fake().calls("cuLaunchKernel") == 1);
    CHECK(fake().calls("cuGraphLaunch") + fake().calls("cuMemcpyHtoDAsync_v2") == 0);
  }
  kernel.run(nullptr, 0, nullptr);
}

// A launch of `layered` that combines its result with no other value has its input in that place again.
TEST_CASE("an input that is passed twice crosses the bus once") {
  const Weights weights(2);
  Plan plan = one_launch(weights);
  plan.launches[0].arguments.push_back({Argument::kX});
  for (const auto& [column_blocks, launches] : {std::pair{60u, 1u}, {120u, 0u}}) {  // of 1280 bytes each
    plan.launches[0].column_blocks = column_blocks;
    CudaKernel kernel(weights.device, plan, 1);
    fake().reset();
    CHECK(code_of(kernel, 64) == kSuccess);
    CHECK((fake().calls("cuLaunchKernel") == launches && fake().calls("cuGraphLaunch") == 1 - launches));
  }
}

TEST_CASE("a larger batch is one graph with both copies") {
  const Weights weights(3);
  CudaKernel kernel(weights.device, one_launch(weights), 1);
  for (std::size_t rows : {65u, 128u, 129u, 1000u, 1024u}) {
    fake().reset();
    check_batch(kernel, rows, static_cast<unsigned>(rows), 3);
    CHECK(fake().calls("cuGraphLaunch") == 1);
    CHECK(fake().calls("cuLaunchKernel") + fake().calls("cuMemcpyHtoDAsync_v2") == 0);
  }
}

TEST_CASE("several launches are one graph at any size") {
  const Weights weights(2);
  CudaKernel kernel(weights.device, two_launches(weights), 1);
  for (std::size_t rows : {1u, 16u, 40u, 64u, 500u, 1024u}) {
    fake().reset();
    check_batch(kernel, rows, 4, 2, 1);
    CHECK(fake().calls("cuGraphLaunch") == 1);
    CHECK(fake().calls("cuLaunchKernel") == 0);
  }
  check_batch(kernel, 1025, 5, 2, 1);
}

TEST_CASE("batches beyond the graphs are parts on two streams") {
  const Weights weights(1);
  CudaKernel kernel(weights.device, one_launch(weights), 2);
  struct Case {
    std::size_t rows;
    unsigned graphs, launches;
  };
  // 5 inputs and 3 outputs: parts of up to 8192 rows, at least two. Those of up to 1024 are graphs.
  for (const auto& [rows, graphs, launches] : std::initializer_list<Case>{
           {1025, 2, 0}, {2048, 2, 0}, {2049, 1, 1}, {8192, 0, 2}, {16385, 0, 3}, {20000, 0, 3}}) {
    fake().reset();
    check_batch(kernel, rows, 6, 1);
    CHECK(fake().calls("cuGraphLaunch") == graphs);
    CHECK(fake().calls("cuLaunchKernel") == launches);
  }
  fake().reset();
  fake().hold(1);
  std::thread caller([&] { check_batch(kernel, 20000, 7, 1); });
  wait_for_calls("cuMemcpyDtoHAsync_v2", 2);  // both parts are on their way while the first has not ended
  fake().hold(0);
  caller.join();
  CudaKernel alone(weights.device, one_launch(weights), 1);  // one stream: the same, part after part
  fake().reset();
  check_batch(alone, 2000, 8, 1);
  CHECK(fake().calls("cuLaunchKernel") == 1);
  check_batch(alone, 20000, 8, 1);
}

// As 64-4096-4096-10 has.
Plan wide(const Weights& weights) {
  Plan plan = two_launches(weights);
  plan.scratch = {{4096 * sizeof(float)}, {4096 * sizeof(float)}};
  return plan;
}

TEST_CASE("a wide model takes memory for 1024 rows only") {
  const Weights weights(2);
  CudaKernel kernel(weights.device, wide(weights), 2);
  const std::size_t at_load = kernel.device_bytes();
  CHECK(at_load == 2 * 1024 * (2 * 4096 + kIn + kOut) * sizeof(float));
  fake().reset();
  check_batch(kernel, 5000, 1, 2, 1);
  CHECK((fake().calls("cuGraphLaunch") == 5 && fake().calls("cuLaunchKernel") == 0));
  CHECK(kernel.device_bytes() == at_load);
}

// As `split` has: more launches for small batches, of which the second may begin before the first ends.
TEST_CASE("launches for other batch sizes are left out") {
  const Weights weights(2);
  Plan plan = two_launches(weights);
  plan.scratch[0].max_rows = plan.launches[0].max_rows = plan.launches[1].max_rows = 16;
  plan.launches[1].dependent = true;
  plan.launches.push_back(project_from(Argument::kX, weights));
  plan.launches[2].min_rows = 17;
  fake().reset();
  CudaKernel kernel(weights.device, plan, 2);
  CHECK(fake().calls("cuGraphAddDependencies_v2") == 2);  // in the graphs of 16 rows
  CHECK(kernel.device_bytes() == 2 * (1024 * (kIn + kOut) + 16 * kIn) * sizeof(float));
  for (const std::size_t rows : {1, 16}) check_batch(kernel, rows, 1, 2, 1);
  for (const std::size_t rows : {17, 1000, 3000}) check_batch(kernel, rows, 1, 2);
}

TEST_CASE("buffers for large batches are made with the first of them") {
  const Weights weights(2);
  CudaKernel kernel(weights.device, one_launch(weights), 2), crowded(weights.device, one_launch(weights), 2);
  const std::size_t row_bytes = (kIn + kOut) * sizeof(float);
  CHECK(kernel.device_bytes() == 2 * 1024 * row_bytes);
  check_batch(kernel, 2048, 1, 2);
  CHECK(kernel.device_bytes() == 2 * 1024 * row_bytes);
  check_batch(kernel, 2049, 1, 2);
  CHECK(kernel.device_bytes() == 2 * (1024 + 8192) * row_bytes);
  fake().reset();
  check_batch(kernel, 20000, 1, 2);
  CHECK(fake().calls("cuMemAlloc_v2") + fake().calls("cuMemHostAlloc") == 0);
  // Without memory for them, in graphs, for good. Nothing was lost: not the batch, not the device.
  const std::size_t allocations = fake().alive().allocations;
  for (const char* symbol : {"cuMemAlloc_v2", "cuMemHostAlloc"}) fake().fail(symbol, kOutOfMemory, 0, 1);
  check_batch(crowded, 5000, 1, 2);
  CHECK(fake().calls("cuGraphLaunch") == 5);
  fake().reset();
  check_batch(crowded, 5000, 1, 2);
  CHECK((fake().calls("cuGraphLaunch") == 5 && fake().calls("cuMemAlloc_v2") == 0));
  CHECK(fake().alive().allocations == allocations);
  CHECK(weights.device->sticky_error() == kSuccess);
}

TEST_CASE("graphs are replayed once before traffic") {
  const Weights weights(2);
  CudaKernel kernel(weights.device, two_launches(weights), 2);
  fake().reset();
  kernel.replay_graphs();
  CHECK(fake().calls("cuGraphLaunch") == 2 * 11);
  check_batch(kernel, 100, 1, 2, 1);
  fake().fail("kernel", 719, 30, 1);
  CUresult code = kSuccess;
  try {
    kernel.replay_graphs();
  } catch (const DriverError& error) {
    code = error.code();
  }
  CHECK((code == 719 && weights.device->sticky_error() == 719));
  fake().reset();
}

// The launcher's streams do not wait for the null stream, on which weights are copied.
TEST_CASE("weights are there before a kernel reads them") {
  fake().set_delay_us(2000);
  for (float factor = 1; factor < 16; ++factor) {
    const Weights weights(factor);
    const CurrentContext current(*weights.device);
    const Driver& driver = Driver::get();
    const MappedMemory host(driver, sizeof(float));
    const Stream stream = make_stream(driver);
    CHECK(driver.copy_out_async(host.host(), weights.memory.address(), sizeof(float), stream.get()) ==
          kSuccess);
    CHECK(driver.stream_synchronize(stream.get()) == kSuccess);
    CHECK(*host.host() == factor);
  }
  fake().set_delay_us(20);
}

TEST_CASE("many threads share a kernel") {
  const Weights weights(2);
  CudaKernel kernel(weights.device, one_launch(weights), 2);
  CudaKernel other(weights.device, two_launches(weights), 1);
  std::vector<std::thread> callers;
  for (unsigned c = 0; c < 4; ++c) {
    callers.emplace_back([&, c] {
      for (unsigned i = 0; i < 25; ++i) {
        check_batch(kernel, 1 + (c * 37 + i * 61) % 300, c + i, 2);
        check_batch(other, 1 + (c * 11 + i * 23) % 100, c + i, 2, 1);
        if (i % 12 == 0) check_batch(kernel, 9000, i, 2);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

// torch waits for the whole device before it records a graph, and records while other threads load and serve.
TEST_CASE("a kernel is loaded beside a recording and a wait for the device") {
  const Weights weights(2);
  std::atomic<bool> stop{false}, recording{false};
  CUresult recorded = 0;
  std::thread waiting([&] {
    const CurrentContext current(*weights.device);
    while (!stop) CHECK(synchronize_device() == kSuccess);
  });
  for (int i = 0; i < 10; ++i) {
    CudaKernel kernel(weights.device, two_launches(weights), 2);
    check_batch(kernel, 100, 1, 2, 1);
  }
  stop = true;
  waiting.join();
  stop = false;
  std::thread recorder([&] {
    const CurrentContext current(*weights.device);
    const Stream stream = make_stream(Driver::get());
    CHECK(begin_capture(stream.get()) == kSuccess);
    recording = true;
    while (!stop) std::this_thread::yield();
    recorded = end_capture(stream.get());
  });
  while (!recording) std::this_thread::yield();
  {
    CudaKernel kernel(weights.device, two_launches(weights), 2);
    check_batch(kernel, 100, 1, 2, 1);
  }
  stop = true;
  recorder.join();
  CHECK(recorded == kSuccess);
}

TEST_CASE("a slow device is waited for asleep") {
  const Weights weights(2);
  CudaKernel kernel(weights.device, one_launch(weights), 1);
  fake().reset();
  fake().hold(1);
  std::thread caller([&] { check_batch(kernel, 4, 1, 2); });
  wait_for_calls("cuLaunchHostFunc", 1);  // after the spin
  fake().hold(0);
  caller.join();
}

TEST_CASE("a failed call fails its batch only") {
  const Weights weights(2);
  CudaKernel kernel(weights.device, one_launch(weights), 2);
  const std::pair<const char*, std::size_t> failures[] = {{"cuLaunchKernel", 8},
                                                          {"cuGraphLaunch", 100},
                                                          {"cuMemcpyDtoHAsync_v2", 20000},
                                                          {"cuLaunchKernel", 20000}};
  for (const auto& [symbol, rows] : failures) {
    fake().reset();
    fake().fail(symbol, 701, rows > 9000 ? 1 : 0, 1);
    CHECK(code_of(kernel, rows) == 701);
    CHECK(weights.device->sticky_error() == kSuccess);
    check_batch(kernel, rows, 9, 2);
  }
  fake().reset();
}

// Neither in a batch nor at load, and even if waiting for the stream meets them as well.
TEST_CASE("a passing error does not break the device") {
  const Weights weights(2);
  CudaKernel kernel(weights.device, one_launch(weights), 1);
  for (const CUresult code : {2, 701, 900, 901, 906, 908}) {
    for (const char* also : {"cuStreamQuery", "cuEventCreate"}) {
      fake().reset();
      fake().fail("cuLaunchKernel", code, 0, 1);
      fake().fail("cuStreamQuery", code, 0, 1);
      if (code != 701) fake().fail(also, code, 0, 1);
      CHECK(code_of(kernel, 8) == code);
      CHECK(weights.device->sticky_error() == kSuccess);
      check_batch(kernel, 8, 9, 2);
      fake().fail("cuModuleLoadData", code, 0, 1);
      if (code != 701) fake().fail(also, code, 0, 1);
      try {
        const CudaKernel refused(weights.device, one_launch(weights), 1);
      } catch (const DriverError&) {
      }
      CHECK(weights.device->sticky_error() == kSuccess);
    }
  }
  fake().reset();
}

TEST_CASE("a failed kernel breaks the device for good") {
  {
    const Weights weights(2);
    CudaKernel kernel(weights.device, one_launch(weights), 1), other(weights.device, one_launch(weights), 1);
    fake().reset();
    fake().fail("kernel", 719, 0, 1);
    std::vector<std::string> told;
    weights.device->on_lost([&](const std::string& why) { told.push_back(why); });
    CHECK(code_of(kernel, 8) == 719);
    CHECK(told == std::vector<std::string>{"CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"});
    weights.device->on_lost({});
    CHECK(weights.device->sticky_error() == 719);
    fake().reset();
    CHECK(code_of(other, 8) == 719);  // of another model on the same device, without trying
    CHECK(fake().calls("cuLaunchKernel") == 0);
  }
  fake().reset();
  const Weights weights(2);
  CUresult code = kSuccess;
  try {
    CudaKernel kernel(weights.device, one_launch(weights, "overrun"), 1);  // runs once as it is loaded
  } catch (const DriverError& error) {
    code = error.code();
  }
  CHECK(code == 700);
  CHECK(weights.device->sticky_error() == 700);
  fake().reset();
}

// Where nothing of the batch is in flight too: its context, or memory for a large one.
TEST_CASE("a device that is lost before a batch began is noticed") {
  for (const auto& [symbol, rows] : {std::pair{"cuCtxPushCurrent_v2", 8}, {"cuMemAlloc_v2", 20000}}) {
    const Weights weights(2);
    CudaKernel kernel(weights.device, one_launch(weights), 1);
    fake().reset();
    fake().fail(symbol, 719, 0, 1000);
    if (rows > 8) fake().fail("cuEventCreate", 719, 0, 1000);
    CHECK(code_of(kernel, static_cast<std::size_t>(rows)) == 719);
    CHECK(weights.device->sticky_error() == 719);
    fake().reset();
  }
}

TEST_CASE("memory that runs out at load leaves nothing behind") {
  const Weights weights(2);
  const fake_cuda_alive before = fake().alive();
  for (int allocation = 0; allocation < 6; ++allocation) {
    for (const char* symbol : {"cuMemAlloc_v2", "cuMemHostAlloc", "cuGraphAddMemcpyNode",
                               "cuGraphInstantiateWithFlags", "cuStreamCreate"}) {
      fake().reset();
      fake().fail(symbol, kOutOfMemory, allocation, 1);
      CUresult code = kSuccess;
      try {
        const CudaKernel kernel(weights.device, two_launches(weights), 2);
      } catch (const DriverError& error) {
        code = error.code();
      }
      CHECK(code == (fake().calls(symbol) > static_cast<unsigned>(allocation) ? kOutOfMemory : kSuccess));
      const fake_cuda_alive after = fake().alive();
      CHECK(std::memcmp(&before, &after, sizeof before) == 0);
    }
  }
  fake().reset();
}

TEST_CASE("everything is freed with the kernel") {
  CHECK(nothing_is_alive());
  {
    const Weights weights(2);
    const CudaKernel kernel(weights.device, two_launches(weights), 3);
    const fake_cuda_alive alive = fake().alive();
    CHECK((alive.streams == 3 && alive.modules == 2 && alive.executables == 3 * 11 && alive.graphs == 0));
    CHECK(kernel.device_bytes() == 3 * 1024 * (2 * kIn + kOut) * sizeof(float));
  }
  CHECK(nothing_is_alive());
}

TEST_CASE("machine code for another gpu gives way to ptx") {
  const Weights weights(4);
  Plan plan = one_launch(weights);
  plan.kernels[0].cubin = "\177ELF of some other GPU";
  CudaKernel kernel(weights.device, plan, 1);
  check_batch(kernel, 5, 1, 4);
  plan.kernels[0].ptx.clear();
  CUresult code = kSuccess;
  try {
    const CudaKernel refused(weights.device, plan, 1);
  } catch (const DriverError& error) {
    code = error.code();
    CHECK(std::string(error.what()) ==
          "cannot load the kernel project: CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available for "
          "execution on "
          "the device");
  }
  CHECK(code == kNoBinaryForGpu);
}

TEST_CASE("a plan that does not fit together is refused") {
  const Weights weights(2);
  const auto refused = [&](auto change) {
    Plan plan = two_launches(weights);
    change(plan);
    try {
      const CudaKernel kernel(weights.device, plan, 1);
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  CHECK(refused([](Plan& plan) { plan.launches.clear(); }));
  CHECK(refused([](Plan& plan) { plan.launches[0].kernel = 2; }));
  CHECK(refused([](Plan& plan) { plan.launches[0].block_rows = 0; }));
  CHECK(refused([](Plan& plan) { plan.launches[0].arguments[1].value = 1; }));
  CHECK(refused([](Plan& plan) { plan.launches[0].arguments.resize(25); }));
  CHECK(refused([](Plan& plan) { plan.kernels[0].threads = 2048; }));
  CHECK(refused([](Plan& plan) { plan.kernels[0].ptx.clear(); }));
  CHECK(refused([](Plan& plan) { plan.out_features = 0; }));
  CHECK(!refused([](Plan&) {}));
  bool outside = false;
  try {
    Device::open(2);
  } catch (const std::invalid_argument& error) {
    outside = std::string(error.what()) == "device: expected 0 to 1, got 2";
  }
  CHECK(outside);
}

TEST_CASE("the c interface says that it waits and why it failed") {
  const Weights weights(2);
  CudaKernel kernel(weights.device, one_launch(weights), 1);
  const fused_mlp_kernel& api = *kernel.api();
  CHECK((api.abi == FUSED_MLP_KERNEL_ABI && (api.flags & FUSED_MLP_KERNEL_WAITS) != 0));
  CHECK((api.in_features == kIn && api.out_features == kOut));
  CHECK(std::string(api.strategy(api.ctx, 7)) == "whole/16");
  const std::vector<float> x = rows_of(3, 0);
  float y[3 * kOut];
  char error[64] = "";
  CHECK(api.run(api.ctx, x.data(), 3, y, UINT_MAX, error, sizeof error) == 0);
  fake().fail("cuLaunchKernel", 701, 0, 1);
  CHECK(api.run(api.ctx, x.data(), 3, y, 99, error, sizeof error) == 701);
  CHECK(std::string(error).starts_with("cannot launch a kernel: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"));
  fake().fail("cuLaunchKernel", 701, 0, 1);
  CHECK(api.run(api.ctx, x.data(), 3, y, 0, nullptr, 0) == 701);
}

// As the engine does: rows go straight to page-locked memory, and two batches are in flight on one thread.
TEST_CASE("a batch in steps is not copied and does not wait for the one before") {
  const Weights weights(2);
  CudaKernel kernel(weights.device, one_launch(weights), 2);
  const fused_mlp_kernel& api = *kernel.api();
  const fused_mlp_steps& steps = *api.steps;
  fake().reset();
  fake().hold(1);
  void* batches[2];
  for (void*& batch : batches) {
    float* x = nullptr;
    batch = steps.begin(api.ctx, 100, &x);
    CHECK(batch != nullptr);
    std::fill_n(x, 100 * kIn, 1.0f);
    CHECK(steps.start(api.ctx, batch, nullptr, 0) == 0);
  }
  CHECK(fake().calls("cuGraphLaunch") == 2);
  float* x = nullptr;
  CHECK(steps.begin(api.ctx, 1, &x) == nullptr);  // no place now
  fake().hold(0);
  for (void* const batch : batches) {
    const float* y = nullptr;
    CHECK(steps.finish(api.ctx, batch, 0, &y, nullptr, 0) == 0);
    CHECK((y[0] == 2 * kIn && y[100 * kOut - 1] == 6 * kIn));
    steps.end(api.ctx, batch);
  }
  CHECK(steps.begin(api.ctx, 1025, &x) == nullptr);  // never: they are two parts
  check_batch(kernel, 1025, 1, 2);
}

// At any step: what was started is waited for, and the place is another batch's.
TEST_CASE("a batch in steps may end early") {
  const Weights weights(2);
  CudaKernel kernel(weights.device, one_launch(weights), 1);
  const fused_mlp_kernel& api = *kernel.api();
  const fused_mlp_steps& steps = *api.steps;
  for (int started = 0; started < 3; ++started) {
    float* x = nullptr;
    void* const batch = steps.begin(api.ctx, 8, &x);
    CHECK(batch != nullptr);
    char error[64] = "";
    if (started == 2) fake().fail("cuLaunchKernel", 701, 0, 1);
    if (started != 0) {
      CHECK(steps.start(api.ctx, batch, error, sizeof error) == (started == 2 ? 701 : 0));
      CHECK(std::string(error).starts_with(started == 2 ? "cannot launch a kernel" : ""));
    }
    steps.end(api.ctx, batch);
    check_batch(kernel, 8, 1, 2);
  }
  fake().reset();
}

// The fake names mistakes that the real driver punishes with silence or a crash.
TEST_CASE("the fake refuses what cuda would") {
  const Weights weights(2);
  const Driver& driver = Driver::get();
  const CurrentContext current(*weights.device);
  const Stream stream = make_stream(driver);
  const MappedMemory pinned(driver, 64);
  CHECK(pinned.device() != reinterpret_cast<CUdeviceptr>(pinned.host()));
  float unpinned[16] = {};
  CHECK(driver.copy_in_async(weights.memory.address(), unpinned, 4, stream.get()) == 1);
  CHECK(driver.copy_in_async(weights.memory.address(), pinned.host(), 8, stream.get()) ==
        1);  // beyond its end
  CUdeviceptr freed = 0;
  {
    const DeviceMemory gone = allocate(driver, 64);
    freed = gone.get();
  }
  CHECK(driver.copy_in_async(freed, pinned.host(), 4, stream.get()) == 1);
  CHECK(begin_capture(stream.get()) == kSuccess);
  CHECK(driver.stream_synchronize(stream.get()) == 900);
  CHECK(end_capture(stream.get()) == 901);
  CHECK(begin_capture(stream.get()) == kSuccess);
  CUdeviceptr address = 0;
  CHECK(driver.memory_alloc(&address, 64) == 900);
  CHECK(end_capture(stream.get()) == 901);
  CHECK(begin_capture(stream.get()) == kSuccess);
  std::thread([&] {
    const CurrentContext same(*weights.device);
    CHECK(synchronize_device() == 900);
  }).join();
  CHECK(end_capture(stream.get()) == 901);
  const std::shared_ptr<Device> second = Device::open(1);
  {
    const CurrentContext other(*second);
    CHECK(driver.stream_query(stream.get()) == 201);
  }
  CHECK(driver.stream_query(reinterpret_cast<CUstream>(unpinned)) == 400);
  CUresult without_context = kSuccess;
  std::thread([&] { without_context = driver.stream_query(stream.get()); }).join();
  CHECK(without_context == 201);
}

TEST_CASE("nothing is left on the device") { CHECK(nothing_is_alive()); }

// These come last: the device stays lost.

// Runs last: what a device that hangs may still use is never freed.
TEST_CASE("a device that hangs is given up") {
  {
    const Weights weights(2, 1);
    CudaKernel kernel(weights.device, one_launch(weights), 2);
    weights.device->set_patience(std::chrono::milliseconds(1000));
    std::string told;
    weights.device->on_lost([&](const std::string& why) { told = why; });
    fake().reset();
    fake().hold(1);
    std::vector<std::thread> callers;  // two in flight, and one that waits for a place
    const auto call = [&] { CHECK(code_of(kernel, 4) == kLaunchTimeout); };
    for (int i = 0; i < 2; ++i) callers.emplace_back(call);
    wait_for_calls("cuLaunchKernel", 2);
    callers.emplace_back(call);
    for (std::thread& caller : callers) caller.join();
    CHECK(fake().calls("cuLaunchKernel") == 2);
    CHECK(told == "no answer within 1000 ms");
    CHECK(weights.device->hangs());
    fake().reset();
    CHECK(code_of(kernel, 4) == kLaunchTimeout);  // without trying
    CHECK(fake().calls("cuLaunchKernel") == 0);
    weights.device->on_lost({});
  }
  fake().hold(0);
}

// The rest of a batch that failed may never end: it is not waited for without limit either.
TEST_CASE("what a failed batch left on a device that hangs is given up") {
  {
    const Weights weights(2);
    CudaKernel kernel(weights.device, one_launch(weights), 1);
    weights.device->set_patience(std::chrono::milliseconds(30));
    fake().reset();
    fake().hold(1);
    fake().fail("cuLaunchKernel", 701, 0, 1);
    CHECK(code_of(kernel, 20000) == 701);  // after the copy of its first part
    CHECK(weights.device->hangs());
    CHECK(code_of(kernel, 4) == kLaunchTimeout);
  }
  fake().hold(0);
}

}  // namespace
