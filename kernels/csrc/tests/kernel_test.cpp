// SPDX-License-Identifier: Apache-2.0
// The kernel from C++: shapes around every register and panel size, on every instruction set, with exactly
// sized heap arrays, so that a sanitizer finds every out-of-bounds access.
#include "model/kernel.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "model/scratch.hpp"
#include "profile/phases.hpp"
#include "threads/pool.hpp"
#include "tile/layer.hpp"
#include "tile/microkernel.hpp"

using namespace fused_mlp;

namespace {

std::mt19937 generator(7);

// So that the planner splits what it can.
constexpr WakeCost kFreeWake = {0.0, 0.0};

std::unique_ptr<float[]> random_floats(std::size_t n, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  auto data = std::make_unique<float[]>(n);
  for (std::size_t i = 0; i < n; ++i) data[i] = normal(generator);
  return data;
}

FunctionSource named(Activation activation) {
  if (activation == Activation::kIdentity) return {};
  FormulaStep step{};
  step.activation = activation;
  return {step};
}

// A chain of layers that owns its arrays, and a reference in double precision.
struct Model {
  struct Layer {
    LayerSource source;
    Activation activation;
  };
  std::vector<std::unique_ptr<float[]>> arrays;
  std::vector<Layer> layers;

  const float* make(std::size_t n, float scale) { return arrays.emplace_back(random_floats(n, scale)).get(); }

  void add(std::size_t in, std::size_t out, Activation activation, bool bias, bool gated) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(in));
    layers.push_back(
        {{make(in * out, scale), bias ? make(out, 1.0f) : nullptr, gated ? make(in * out, scale) : nullptr,
          gated && bias ? make(out, 1.0f) : nullptr, in, out},
         activation});
  }

  // The values between the layers alternate between two buffers.
  ProgramSource program() const {
    ProgramSource program{layers.front().source.in, layers.back().source.out, {1, 1}, {}};
    Region in{Region::kInput, 0};
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const auto& [source, activation] = layers[l];
      const bool gated = source.gate_weight != nullptr, last = l + 1 == layers.size();
      ProductSource product{
          .layer = source, .gate = {}, .function = {}, .in = in, .out = {}, .other = {}, .then = {}};
      (gated ? product.gate : product.function) = named(activation);
      product.out = {last ? Region::kOutput : Region::kScratch + l % 2, 0};
      product.free_to_the_right = true;
      if (!last) program.scratch[l % 2] = std::max(program.scratch[l % 2], source.out);
      in = product.out;
      program.ops.emplace_back(product);
    }
    return program;
  }

  std::vector<double> reference(const float* x) const {
    std::vector<double> value(x, x + layers.front().source.in);
    for (const auto& [layer, activation] : layers) {
      std::vector<double> next(layer.out);
      for (std::size_t o = 0; o < layer.out; ++o) {
        const auto linear = [&](const void* weight, const float* bias) {
          double sum = bias != nullptr ? bias[o] : 0.0;
          for (std::size_t i = 0; i < layer.in; ++i)
            sum += static_cast<double>(static_cast<const float*>(weight)[o * layer.in + i]) * value[i];
          return sum;
        };
        const double up = linear(layer.weight, layer.bias);
        const double gate = layer.gate_weight != nullptr ? linear(layer.gate_weight, layer.gate_bias) : up;
        const double active = activation == Activation::kRelu ? std::fmax(gate, 0.0) : gate;
        next[o] = layer.gate_weight != nullptr ? active * up : active;
      }
      value = next;
    }
    return value;
  }
};

// Rows with words [first, last) in common, in groups of one row, of some, and of the rest: the bits of whole
// rows.
void check_groups(const MlpKernel& kernel, std::size_t rows, std::uint32_t first, std::uint32_t last) {
  const std::size_t in = kernel.in_features(), out = kernel.out_features(), shared = last - first;
  const auto x = random_floats(rows * in);
  std::vector<std::unique_ptr<float[]>> arrays;
  std::vector<fused_mlp_group> groups;
  for (std::size_t row = 0; row < rows;) {
    const std::size_t left = rows - row, size = groups.empty()      ? 1
                                                : groups.size() > 3 ? left
                                                                    : (left + 2) / 3;
    float* const words = arrays.emplace_back(new float[shared]).get();
    float* own = arrays.emplace_back(new float[size * (in - shared)]).get();
    groups.push_back({words, own, size});
    std::copy_n(x.get() + row * in + first, shared, words);
    for (const std::size_t end = row + size; row < end; ++row) {
      float* const each = x.get() + row * in;
      std::copy_n(words, shared, each + first);
      own = std::copy_n(each, first, own);
      own = std::copy_n(each + last, in - last, own);
    }
  }
  const auto whole = std::make_unique<float[]>(rows * out), y = std::make_unique<float[]>(rows * out);
  const fused_mlp_words words{first, last};
  char error[64] = "";
  const fused_mlp_kernel* api = kernel.api();
  CHECK(api->run(api->ctx, x.get(), rows, whole.get(), 0, error, sizeof error) == 0);
  for (unsigned busy = 0; busy < 2; ++busy) {
    CHECK(api->run_groups(api->ctx, &words, 1, groups.data(), groups.size(), y.get(), busy, error,
                          sizeof error) == 0);
    CHECK(std::memcmp(whole.get(), y.get(), rows * out * sizeof(float)) == 0);
  }
}

void check_model(const Model& model, const char* isa, unsigned threads, std::size_t rows) {
  const MlpKernel kernel(model.program(), threads, isa, &kFreeWake);
  const std::size_t in = kernel.in_features(), out = kernel.out_features();
  const auto x = random_floats(rows * in);
  const auto y = std::make_unique<float[]>(rows * out);
  char error[64] = "";
  const fused_mlp_kernel* api = kernel.api();
  CHECK(api->run(api->ctx, x.get(), rows, y.get(), 0, error, sizeof error) == 0);
  const auto shared = std::make_unique<float[]>(rows * out);
  for (unsigned busy = 1; busy <= threads; ++busy) {  // with fewer threads: bit-identical
    CHECK(api->run(api->ctx, x.get(), rows, shared.get(), busy, error, sizeof error) == 0);
    CHECK(std::memcmp(shared.get(), y.get(), rows * out * sizeof(float)) == 0);
  }
  const auto width = static_cast<std::uint32_t>(in), half = (width + 1) / 2;
  check_groups(kernel, rows, 0, half);
  if (width > 1) check_groups(kernel, rows, width - half, width);
  if (width > 2) check_groups(kernel, rows, 1, width - 1);
  for (std::size_t r = 0; r < rows; ++r) {
    const std::vector<double> expected = model.reference(x.get() + r * in);
    const auto single = std::make_unique<float[]>(out);
    kernel.run(x.get() + r * in, 1, single.get());
    CHECK(std::memcmp(single.get(), y.get() + r * out, out * sizeof(float)) == 0);
    for (std::size_t o = 0; o < out; ++o)
      CHECK(std::fabs(y[r * out + o] - expected[o]) < 1e-4 * (1.0 + std::fabs(expected[o])));
  }
}

std::vector<const char*> isas() {
  std::vector<const char*> names;
  for (const Isa* isa : usable_isas(false)) names.push_back(isa->name);
  return names;
}

TEST_CASE("shapes around registers and panels") {
  for (const char* isa : isas()) {
    for (std::size_t width : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129}) {
      for (bool gated : {false, true}) {
        Model model;
        model.add(width, width + 3, Activation::kRelu, true, gated);
        model.add(width + 3, width, Activation::kRelu, false, gated);
        for (std::size_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 13}) check_model(model, isa, 1, rows);
      }
    }
  }
}

// Wide enough for the planner to split it: first by columns, then by rows.
TEST_CASE("threads agree") {
  Model model;
  model.add(300, 700, Activation::kRelu, true, false);
  model.add(700, 500, Activation::kRelu, true, true);
  model.add(500, 33, Activation::kIdentity, true, false);
  for (const char* isa : isas()) {
    for (unsigned threads : {2u, 3u}) {
      for (std::size_t rows : {1, 4, 6, 40}) check_model(model, isa, threads, rows);
    }
  }
}

Model demo() {
  Model model;
  model.add(784, 512, Activation::kRelu, true, false);
  model.add(512, 256, Activation::kRelu, true, false);
  model.add(256, 10, Activation::kIdentity, true, false);
  return model;
}

// A thread must save more time than it costs: none for one row, more for more rows, all of them only if
// waking is free.
TEST_CASE("threads are used where they pay") {
  const Model model = demo();
  const WakeCost usual = {5.0, 8.0}, dear = {50.0, 50.0};
  for (const char* isa : isas()) {
    const Isa& set = choose_isa(isa, false);
    const Program program(model.program(), set);
    const Planner planner(program, 3, set, 64, &usual), careful(program, 3, set, 64, &dear),
        free(program, 3, set, 64, &kFreeWake);
    CHECK(careful.plan(1, 64, false).threads == 1);
    CHECK(free.plan(4096, 64, false).threads == 64);
    CHECK(free.plan(4096, 5, false).threads == 5);
    CHECK(careful.plan(128, 64, false).threads < planner.plan(128, 64, false).threads);
    bool some = false;
    for (std::size_t rows = 1; rows <= 5000; ++rows) {
      const unsigned threads = planner.plan(rows, 64, false).threads;
      CHECK(threads <= 64);
      some |= threads > 2 && threads < 64;
    }
    CHECK(some);
  }
}

// By what the pool's own wake-ups took, whatever was measured at load.
TEST_CASE("sleeping helpers are woken where that pays") {
  const Model model = demo();
  const MlpKernel kernel(model.program(), 2, nullptr, &kFreeWake);
  const auto x = random_floats(784);
  std::vector<float> y(10);
  Pool& pool = Pool::shared();
  const auto jobs_of_50_calls = [&](std::int64_t latency_ns) {
    const std::uint64_t before = pool.jobs();
    for (int i = 0; i < 50; ++i) {
      for (int n = 0; n < 100; ++n) pool.wake_latency().record(latency_ns);
      const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
      while (std::chrono::steady_clock::now() < until) {  // helpers fall asleep
      }
      kernel.run(x.get(), 1, y.data());
    }
    return pool.jobs() - before;
  };
  CHECK(jobs_of_50_calls(1'000) == 50);
  CHECK(jobs_of_50_calls(100'000) <= 1);  // one call in WakeLatency::kTrial wakes them anyway
}

// Every participant finds a piece of the layer that is its own.
TEST_CASE("more than 64 threads find work") {
  constexpr unsigned kThreads = 96;
  Model model;
  model.add(2112, 3072, Activation::kIdentity, true, false);  // above 24 MiB: split by columns
  const MlpKernel kernel(model.program(), kThreads, nullptr, &kFreeWake);
  const auto x = random_floats(8 * 2112);
  std::vector<float> y(8 * 3072), alone(8 * 3072);
  start_recording_phases(10'000);
  kernel.run(x.get(), 8, y.data());
  CHECK(stop_recording_phases().spans.size() >= kThreads);
  kernel.run(x.get(), 8, alone.data(), kThreads);
  CHECK(y == alone);
}

// More threads than a job can have pieces.
TEST_CASE("more than 960 threads compute every row") {
  constexpr std::size_t kRows = 4096;
  Model model;
  model.add(64, 128, Activation::kRelu, true, false);
  model.add(128, 8, Activation::kIdentity, true, false);
  const auto x = random_floats(kRows * 64);
  bool planned = false;
  for (const char* isa : isas()) {
    const Isa& set = choose_isa(isa, false);
    const Program program(model.program(), set);
    const auto takes_all = [&](unsigned threads) {
      return Planner(program, 2, set, threads, &kFreeWake).plan(kRows, threads, false).threads == threads;
    };
    unsigned threads = Pool::kMaxThreads;
    while (threads > 960 && !takes_all(threads)) --threads;
    planned |= threads > 960;
    const MlpKernel kernel(model.program(), threads, isa, &kFreeWake);
    std::vector<float> alone(kRows * 8, 7.25f), y(kRows * 8, 7.25f);
    kernel.run(x.get(), kRows, alone.data(), threads);
    Pool& pool = Pool::shared();
    for (int n = 0; n < 100; ++n) pool.wake_latency().record(1'000);  // waking pays
    const std::uint64_t before = pool.jobs();
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
    while (std::chrono::steady_clock::now() < until) {  // helpers fall asleep
    }
    kernel.run(x.get(), kRows, y.data());
    CHECK(pool.jobs() == before + 1);
    CHECK(y == alone);
  }
  CHECK(planned);
}

TEST_CASE("a program of many stages is split by rows alone") {
  Model model;
  for (int layer = 0; layer < 300; ++layer) model.add(100, 100, Activation::kRelu, true, false);
  const MlpKernel kernel(model.program(), 2, nullptr, &kFreeWake);
  for (std::size_t rows : {6, 8, 40, 300}) CHECK(std::string(kernel.planned_strategy(rows)) == "row_block");
  const auto x = random_floats(40 * 100);
  std::vector<float> alone(40 * 100), y(40 * 100);
  kernel.run(x.get(), 40, alone.data(), 2);
  kernel.run(x.get(), 40, y.data());
  CHECK(y == alone);
}

TEST_CASE("large scratch is freed when it is not used") {
  Model model;
  model.add(8, 4096, Activation::kRelu, true, false);
  model.add(4096, 8, Activation::kIdentity, true, false);
  const MlpKernel kernel(model.program(), 1, nullptr);
  const auto x = random_floats(300 * 8);
  std::vector<float> first(300 * 8), second(300 * 8);
  kernel.run(x.get(), 300, first.data());
  CHECK(trim_scratch() > (1u << 20));
  CHECK(trim_scratch() == 0);
  kernel.run(x.get(), 300, second.data());
  CHECK(first == second);
}

TEST_CASE("callers share a kernel") {
  Model model;
  model.add(300, 600, Activation::kRelu, true, false);
  model.add(600, 300, Activation::kIdentity, true, false);
  ProgramSource program = model.program();
  const Region y{Region::kOutput, 0};
  program.ops.emplace_back(
      RowSource{.kind = RowKind::kSoftmax, .width = 300, .in = y, .other = {}, .out = y, .then = {}});
  const MlpKernel kernel(program, 2, nullptr);
  const auto x = random_floats(40 * 300);
  std::vector<float> expected(40 * 300);
  kernel.run(x.get(), 40, expected.data());
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      for (std::size_t rows : {1, 3, 8, 40, 2, 40}) {
        std::vector<float> y(rows * 300);
        kernel.run(x.get(), rows, y.data());
        CHECK(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)) == 0);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_CASE("every activation runs on special values") {
  const float special[] = {NAN,   INFINITY, -INFINITY, 0.0f,    -0.0f, 1e-45f,
                           3e38f, -3e38f,   89.0f,     -104.0f, 1.0f};
  for (const Isa* isa : usable_isas(false)) {
    for (int a = 0; a < kPlainActivations; ++a) {
      Function function{.activation = static_cast<Activation>(a)};
      function.parameters[0] = function.parameters[1] = function.parameters[2] = 0.1f;
      float y[std::size(special)];
      isa->apply(function, special, y, std::size(special));
      CHECK((function.activation == Activation::kSign ? y[0] == 0.0f : std::isnan(y[0])));
    }
    for (RowKind kind : {RowKind::kSoftmax, RowKind::kLogSoftmax, RowKind::kLayerNorm, RowKind::kL2Norm}) {
      for (std::size_t n : {1, 3, 8, 17}) {
        const auto row = random_floats(n);
        const RowOp op{.kind = kind,
                       .combination = {},
                       .eps = 0.1f,
                       .width = n,
                       .weight = nullptr,
                       .bias = nullptr,
                       .then = {}};
        isa->run_rows(op, {row.get(), n, row.get(), n, 1, row.get(), n});
      }
    }
  }
}

// AVX-512 has panels of 32 columns and tiles of up to 12 rows. These registers, emulated by vector
// extensions, check the cutting of its tiles on machines without it.
struct Wide {
  using Reg = float __attribute__((vector_size(64)));
  using Mask = std::int32_t __attribute__((vector_size(64)));
  static constexpr int kLanes = 16;
  static constexpr int kVectors = 2;
  static constexpr int kMaxRows = 12;
  static constexpr int panels_at_once(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
  static void pin(Reg&) {}
  static Reg zero() { return Reg{}; }
  static Reg set1(float v) { return Reg{} + v; }
  static Reg load(const float* p) {
    Reg v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static void store(float* p, Reg v) { std::memcpy(p, &v, sizeof v); }
  static Reg broadcast(const float* p) { return set1(*p); }
  static Reg fma(Reg a, Reg b, Reg c) { return a * b + c; }
  static Reg multiply_add(Reg a, Reg b, Reg c) { return a * b + c; }
  static Mask less(Reg a, Reg b) { return (Mask)(a < b); }
  static Reg select(Mask m, Reg yes, Reg no) { return (Reg)((m & (Mask)yes) | (~m & (Mask)no)); }
  static Reg min(Reg a, Reg b) { return select(less(a, b), a, b); }
  static Reg max(Reg a, Reg b) { return select(less(b, a), a, b); }
  static Reg abs(Reg v) { return max(v, -v); }
  static Reg copysign(Reg magnitude, Reg sign) { return select(less(sign, zero()), -magnitude, magnitude); }
  static Reg sqrt(Reg v) { return v; }
  static Mask is_nan(Reg v) { return (Mask)(v != v); }
  static bool any(Mask) { return false; }
  static float add_lanes(Reg v) { return v[0]; }
  static Reg split(Reg x, Reg& exponent) { return exponent = x; }
  static Mask is_odd(Reg t) { return (Mask)(t != t); }
  static Reg negate_by_second_bit(Reg v, Reg) { return v; }
  static Reg pow2(Reg t) { return t; }
  static void pow2_factors(Reg t, Reg& first, Reg& second) { first = second = t; }
};

TEST_CASE("tiles of avx512 are cut correctly") {
  Isa wide = kPortableIsa;
  wide.panel = 32;
  for (std::size_t in : {1, 64, 130}) {
    for (std::size_t out : {1, 31, 32, 33, 100, 300}) {
      for (bool gated : {false, true}) {
        Model model;
        model.add(in, out, Activation::kRelu, true, gated);
        LayerStorage layer = pack_layer(model.layers.front().source, wide);
        layer.packed.function.activation = Activation::kRelu;
        for (std::size_t rows = 1; rows <= 27; ++rows) {
          const auto x = random_floats(rows * in);
          const auto y = std::make_unique<float[]>(rows * out);
          Layer<Wide, FloatProduct<Wide, Float32Weights<Wide>>>::run(
              layer.packed, {x.get(), in, rows, y.get(), out, 0, layer.packed.panels, false});
          for (std::size_t r = 0; r < rows; ++r) {
            const std::vector<double> expected = model.reference(x.get() + r * in);
            for (std::size_t o = 0; o < out; ++o)
              CHECK(std::fabs(y[r * out + o] - expected[o]) < 1e-4 * (1.0 + std::fabs(expected[o])));
          }
        }
      }
    }
  }
}

TEST_CASE("invalid arguments are refused") {
  Model model;
  model.add(3, 4, Activation::kIdentity, true, false);
  const auto refused = [&](const ProgramSource& program, unsigned threads, const char* isa) {
    try {
      const MlpKernel kernel(program, threads, isa);
      return false;
    } catch (const std::invalid_argument&) {
      return true;
    }
  };
  const ProgramSource program = model.program();
  CHECK(refused({3, 4, {}, {}}, 1, nullptr));
  CHECK(refused(program, 0, nullptr));
  CHECK(refused(program, 1, "sse9"));
  CHECK(!refused(program, 1, "portable"));
  const auto changed = [&](Region in, Region out) {
    ProgramSource other = program;
    std::get<ProductSource>(other.ops.front()).in = in;
    std::get<ProductSource>(other.ops.front()).out = out;
    return other;
  };
  CHECK(refused(changed({Region::kInput, 1}, {Region::kOutput, 0}), 1, nullptr));
  CHECK(refused(changed({Region::kInput, 0}, {Region::kOutput, 1}), 1, nullptr));
  CHECK(refused(changed({Region::kInput, 0}, {Region::kInput, 0}), 1, nullptr));
  CHECK(refused(changed({7, 0}, {Region::kOutput, 0}), 1, nullptr));
}

// A norm, a formula, a concatenation of a slice of the input and two products, one of which is gated and has
// a residual, all at odd columns: writes next to values that are there already.
TEST_CASE("programs keep their neighbours") {
  FormulaStep half{}, sum{}, tanh{};
  half.binary = sum.binary = true;
  half.combination = Combination::kMultiply, half.a = 0, half.b = FormulaStep::kConstant, half.to = 1,
  half.constant = 0.5f;
  tanh.activation = Activation::kTanh, tanh.a = 0, tanh.to = 0;
  sum.combination = Combination::kAdd, sum.a = 0, sum.b = 1, sum.to = 0;
  const FunctionSource formula = {half, tanh, sum};  // tanh(x) + x / 2
  for (const char* isa : isas()) {
    for (unsigned threads : {1u, 2u}) {
      for (std::size_t width : {1, 5, 16, 33, 130, 400}) {
        Model model;  // only for its arrays
        const std::size_t in = width + 3, cat = 2 + 2 * width;
        const Region input{Region::kInput, 0}, wide{Region::kScratch, 0}, y{Region::kOutput, 0};
        const auto layer = [&](std::size_t from, std::size_t to, bool gated) {
          model.add(from, to, Activation::kIdentity, true, gated);
          return model.layers.back().source;
        };
        // scratch: [2 of the input | first product | second product], the norm, and the last product
        ProgramSource program{in, cat, {cat, in}, {}};
        const Region norm{Region::kScratch + 1, 0}, first{Region::kScratch, 2},
            second{Region::kScratch, 2 + width};
        const float* const weight = model.make(in, 1.0f);
        program.ops.emplace_back(RowSource{.kind = RowKind::kLayerNorm,
                                           .width = in,
                                           .in = input,
                                           .other = {},
                                           .out = norm,
                                           .eps = 1e-5f,
                                           .weight = weight,
                                           .bias = weight,
                                           .then = {}});
        program.ops.emplace_back(ProductSource{.layer = layer(in, width, true),
                                               .gate = formula,
                                               .function = {},
                                               .in = norm,
                                               .out = second,
                                               .free_to_the_right = true,
                                               .other = Region{Region::kInput, 3},
                                               .then = formula});
        program.ops.emplace_back(ProductSource{.layer = layer(in, width, false),
                                               .gate = {},
                                               .function = formula,
                                               .in = norm,
                                               .out = first,
                                               .free_to_the_right = false,
                                               .other = {},
                                               .then = {}});
        program.ops.emplace_back(RowSource{.kind = RowKind::kMap,
                                           .width = 2,
                                           .in = {Region::kInput, 1},
                                           .other = {},
                                           .out = wide,
                                           .then = {}});
        program.ops.emplace_back(RowSource{.kind = RowKind::kCombine,
                                           .width = cat,
                                           .in = wide,
                                           .other = wide,
                                           .out = y,
                                           .combination = Combination::kMultiply,
                                           .then = formula});
        const MlpKernel kernel(program, threads, isa);
        for (std::size_t rows : {1, 3, 7, 20}) {
          const auto x = random_floats(rows * in);
          const auto all = std::make_unique<float[]>(rows * cat);
          kernel.run(x.get(), rows, all.get());
          for (std::size_t r = 0; r < rows; ++r) {
            const auto single = std::make_unique<float[]>(cat);
            kernel.run(x.get() + r * in, 1, single.get());
            CHECK(std::memcmp(single.get(), all.get() + r * cat, cat * sizeof(float)) == 0);
            std::vector<double> normed(in), expected;
            double mean = 0, variance = 0;
            for (std::size_t i = 0; i < in; ++i) mean += x[r * in + i] / static_cast<double>(in);
            for (std::size_t i = 0; i < in; ++i)
              variance += std::pow(x[r * in + i] - mean, 2) / static_cast<double>(in);
            for (std::size_t i = 0; i < in; ++i)
              normed[i] = (x[r * in + i] - mean) / std::sqrt(variance + 1e-5) * weight[i] + weight[i];
            const auto linear = [&](const void* w, const float* b, std::size_t o) {
              double total = b[o];
              for (std::size_t i = 0; i < in; ++i)
                total += static_cast<const float*>(w)[o * in + i] * normed[i];
              return total;
            };
            const auto f = [](double v) { return std::tanh(v) + v / 2; };
            expected = {x[r * in + 1], x[r * in + 2]};
            const LayerSource &gated = model.layers[0].source, &plain = model.layers[1].source;
            for (std::size_t o = 0; o < width; ++o)
              expected.push_back(f(linear(plain.weight, plain.bias, o)));
            for (std::size_t o = 0; o < width; ++o)
              expected.push_back(
                  f(f(linear(gated.gate_weight, gated.gate_bias, o)) * linear(gated.weight, gated.bias, o) +
                    x[r * in + 3 + o]));
            for (std::size_t o = 0; o < cat; ++o) {
              const double value = f(expected[o] * expected[o]);
              CHECK(std::fabs(all[r * cat + o] - value) < 2e-4 * (1.0 + std::fabs(value)));
            }
          }
        }
      }
    }
  }
}

// Tables of exactly their size, in every precision, rows of odd widths, bags with absent ids and padding:
// right, and the same bits for a row alone.
TEST_CASE("lookups read rows of tables") {
  constexpr std::size_t size = 7, rows = 40, ids = 19;
  for (const char* isa : isas()) {
    for (const std::size_t features : {1, 3, 15, 16, 17, 64, 65, 100}) {
      const auto floats = random_floats(size * features);
      const auto scales = std::make_unique<float[]>(size);
      const auto halves = std::make_unique<std::uint16_t[]>(size * features);
      const auto bytes = std::make_unique<std::int8_t[]>(size * features);
      for (std::size_t i = 0; i < size; ++i) scales[i] = 0.25f * static_cast<float>(i + 1);
      for (std::size_t i = 0; i < size * features; ++i) {
        std::uint32_t bits;
        std::memcpy(&bits, &floats[i], sizeof bits);
        halves[i] = static_cast<std::uint16_t>(bits >> 16);
        bytes[i] = static_cast<std::int8_t>(std::clamp(floats[i] * 40.0f, -127.0f, 127.0f));
      }
      for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16, Precision::kInt8}) {
        const auto value = [&](std::size_t id, std::size_t c) {
          const std::size_t at = id * features + c;
          if (precision == Precision::kInt8) return static_cast<float>(bytes[at]) * scales[id];
          if (precision == Precision::kFloat32) return floats[at];
          const std::uint32_t bits = std::uint32_t{halves[at]} << 16;
          float wide;
          std::memcpy(&wide, &bits, sizeof wide);
          return wide;
        };
        const void* const table = precision == Precision::kFloat32    ? static_cast<const void*>(floats.get())
                                  : precision == Precision::kBfloat16 ? static_cast<const void*>(halves.get())
                                                                      : static_cast<const void*>(bytes.get());
        LookupSource one{.lookup = {.table = table,
                                    .scales = precision == Precision::kInt8 ? scales.get() : nullptr,
                                    .precision = precision,
                                    .features = features,
                                    .ids = ids},
                         .ids = {Region::kInput, 0},
                         .factors = {},
                         .out = {Region::kOutput, 0}};
        LookupSource bag = one;
        bag.lookup.bag = true;
        bag.lookup.padding = 2;
        bag.out.column = ids * features;
        ProgramSource program{ids, (ids + 1) * features, {}, {}};
        program.ops.emplace_back(LookupsSource{one, bag});
        program.limits = {{0, ids, size, false}};
        const MlpKernel kernel(program, 1, isa);
        const std::size_t out = kernel.out_features();
        const auto x = std::make_unique<float[]>(rows * ids), y = std::make_unique<float[]>(rows * out),
                   alone = std::make_unique<float[]>(out);
        for (std::size_t i = 0; i < rows * ids; ++i) {
          const auto id = static_cast<std::int32_t>(generator() % size);
          std::memcpy(&x[i], &id, sizeof id);
        }
        CHECK(kernel.ids_fit(x.get(), rows));
        kernel.run(x.get(), rows, y.get());
        for (std::size_t r = 0; r < rows; ++r) {
          for (std::size_t c = 0; c < features; ++c) {
            double sum = 0;
            for (std::size_t k = 0; k < ids; ++k) {
              std::int32_t id;
              std::memcpy(&id, &x[r * ids + k], sizeof id);
              CHECK(y[r * out + k * features + c] == value(static_cast<std::size_t>(id), c));
              if (id != 2) sum += value(static_cast<std::size_t>(id), c);
            }
            CHECK(std::fabs(y[r * out + ids * features + c] - sum) < 1e-3);
          }
          kernel.run(x.get() + r * ids, 1, alone.get());
          CHECK(std::memcmp(alone.get(), y.get() + r * out, out * sizeof(float)) == 0);
        }
        const std::int32_t beyond = size;
        std::memcpy(&x[rows * ids - 1], &beyond, sizeof beyond);
        CHECK(!kernel.ids_fit(x.get(), rows));
      }
    }
  }
}

}  // namespace
