// The kernel from C++: shapes around every register and panel size, on every instruction set, with exactly
// sized heap arrays, so that a sanitizer finds every out-of-bounds access.
#include "model/kernel.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "tile/layer.hpp"

using namespace fused_mlp;

namespace {

std::mt19937 generator(7);

std::unique_ptr<float[]> random_floats(std::size_t n, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  auto data = std::make_unique<float[]>(n);
  for (std::size_t i = 0; i < n; ++i) data[i] = normal(generator);
  return data;
}

// A model that owns its arrays, and a reference in double precision.
struct Model {
  std::vector<std::unique_ptr<float[]>> arrays;
  std::vector<LayerSource> layers;

  const float* make(std::size_t n, float scale) { return arrays.emplace_back(random_floats(n, scale)).get(); }

  void add(std::size_t in, std::size_t out, Activation activation, bool bias, bool gated) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(in));
    layers.push_back({make(in * out, scale), bias ? make(out, 1.0f) : nullptr,
                      gated ? make(in * out, scale) : nullptr, gated && bias ? make(out, 1.0f) : nullptr, in,
                      out, activation, 0.1f});
  }

  std::vector<double> reference(const float* x) const {
    std::vector<double> value(x, x + layers.front().in);
    for (const LayerSource& layer : layers) {
      std::vector<double> next(layer.out);
      for (std::size_t o = 0; o < layer.out; ++o) {
        const auto linear = [&](const float* weight, const float* bias) {
          double sum = bias != nullptr ? bias[o] : 0.0;
          for (std::size_t i = 0; i < layer.in; ++i)
            sum += static_cast<double>(weight[o * layer.in + i]) * value[i];
          return sum;
        };
        const double up = linear(layer.weight, layer.bias);
        const double gate = layer.gate_weight != nullptr ? linear(layer.gate_weight, layer.gate_bias) : up;
        const double active = layer.activation == Activation::kRelu ? std::fmax(gate, 0.0) : gate;
        next[o] = layer.gate_weight != nullptr ? active * up : active;
      }
      value = next;
    }
    return value;
  }
};

void check_model(const Model& model, const char* isa, unsigned threads, std::size_t rows) {
  const Activation last =
      model.layers.back().gate_weight != nullptr ? Activation::kIdentity : model.layers.back().activation;
  const MlpKernel kernel(model.layers, last, 0.1f, threads, isa);
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
  std::size_t count = 0;
  const Isa* const* list = usable_isas(&count);
  std::vector<const char*> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back(list[i]->name);
  return names;
}

void shapes_around_registers_and_panels() {
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
void threads_agree() {
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

void callers_share_a_kernel() {
  Model model;
  model.add(300, 600, Activation::kRelu, true, false);
  model.add(600, 300, Activation::kIdentity, true, false);
  const MlpKernel kernel(model.layers, Activation::kSoftmax, 0.0f, 2, nullptr);
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

void every_activation_runs_on_special_values() {
  const float special[] = {NAN,   INFINITY, -INFINITY, 0.0f,    -0.0f, 1e-45f,
                           3e38f, -3e38f,   89.0f,     -104.0f, 1.0f};
  std::size_t count = 0;
  const Isa* const* list = usable_isas(&count);
  for (std::size_t i = 0; i < count; ++i) {
    for (int a = 0; a < kElementwiseActivations; ++a) {
      float y[std::size(special)];
      list[i]->activate(static_cast<Activation>(a), 0.1f, special, y, std::size(special));
      CHECK(std::isnan(y[0]));
    }
    for (bool log : {false, true}) {
      for (std::size_t n : {1, 3, 8, 17}) {
        const auto row = random_floats(n);
        list[i]->softmax(row.get(), n, log);
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
  static Mask less(Reg a, Reg b) { return (Mask)(a < b); }
  static Reg select(Mask m, Reg yes, Reg no) { return (Reg)((m & (Mask)yes) | (~m & (Mask)no)); }
  static Reg min(Reg a, Reg b) { return select(less(a, b), a, b); }
  static Reg max(Reg a, Reg b) { return select(less(b, a), a, b); }
  static Reg abs(Reg v) { return max(v, -v); }
  static Reg copysign(Reg magnitude, Reg sign) { return select(less(sign, zero()), -magnitude, magnitude); }
  static Reg pow2(Reg t) { return t; }
  static void pow2_factors(Reg t, Reg& first, Reg& second) { first = second = t; }
};

void tiles_of_avx512_are_cut_correctly() {
  for (std::size_t in : {1, 64, 130}) {
    for (std::size_t out : {1, 31, 32, 33, 100, 300}) {
      for (bool gated : {false, true}) {
        Model model;
        model.add(in, out, Activation::kRelu, true, gated);
        const LayerStorage layer = pack_layer(model.layers.front(), 32);
        for (std::size_t rows = 1; rows <= 27; ++rows) {
          const auto x = random_floats(rows * in);
          const auto y = std::make_unique<float[]>(rows * out);
          Layer<Wide>::run(layer.packed, {x.get(), in, rows, y.get(), out, 0, layer.packed.panels, false});
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

void invalid_arguments_are_refused() {
  Model model;
  model.add(3, 4, Activation::kIdentity, true, false);
  const auto refused = [&](const std::vector<LayerSource>& layers, unsigned threads, const char* isa) {
    try {
      const MlpKernel kernel(layers, Activation::kIdentity, 0.0f, threads, isa);
      return false;
    } catch (const std::invalid_argument&) {
      return true;
    }
  };
  CHECK(refused({}, 1, nullptr));
  CHECK(refused(model.layers, 0, nullptr));
  CHECK(refused(model.layers, 1, "sse9"));
  CHECK(!refused(model.layers, 1, "portable"));
}

}  // namespace

int main() {
  shapes_around_registers_and_panels();
  threads_agree();
  callers_share_a_kernel();
  every_activation_runs_on_special_values();
  tiles_of_avx512_are_cut_correctly();
  invalid_arguments_are_refused();
}
