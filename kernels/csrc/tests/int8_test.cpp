// SPDX-License-Identifier: Apache-2.0
// int8 and bfloat16 products from C++: shapes around every register, group and panel size, on every
// instruction set, with exactly sized heap arrays. int8 results are compared bit by bit with a reference in
// int64.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "model/kernel.hpp"

using namespace fused_mlp;

namespace {

std::mt19937 generator(11);

std::unique_ptr<float[]> random_floats(std::size_t n) {
  std::normal_distribution<float> normal(0.0f, 1.0f);
  auto data = std::make_unique<float[]>(n);
  for (std::size_t i = 0; i < n; ++i) data[i] = normal(generator);
  return data;
}

std::unique_ptr<std::int8_t[]> random_bytes(std::size_t n) {
  std::uniform_int_distribution<int> uniform(-127, 127);
  auto data = std::make_unique<std::int8_t[]>(n);
  for (std::size_t i = 0; i < n; ++i) data[i] = static_cast<std::int8_t>(uniform(generator));
  return data;
}

// One product, gated or not, with relu.
struct Layer {
  std::size_t in, out;
  bool gated;
  std::unique_ptr<std::int8_t[]> weight = random_bytes(in * out), gate_weight = random_bytes(in * out);
  std::unique_ptr<float[]> bias = random_floats(out), gate_bias = random_floats(out);
  std::unique_ptr<float[]> scale = random_floats(out), gate_scale = random_floats(out);

  Layer(std::size_t in_, std::size_t out_, bool gated_) : in(in_), out(out_), gated(gated_) {
    for (std::size_t o = 0; o < out; ++o) {
      scale[o] = std::fabs(scale[o]) * 0.01f;
      gate_scale[o] = std::fabs(gate_scale[o]) * 0.01f;
    }
  }

  LayerSource source() const {
    return {.weight = weight.get(),
            .bias = bias.get(),
            .gate_weight = gated ? gate_weight.get() : nullptr,
            .gate_bias = gated ? gate_bias.get() : nullptr,
            .in = in,
            .out = out,
            .precision = Precision::kInt8,
            .scale = scale.get(),
            .gate_scale = gated ? gate_scale.get() : nullptr};
  }
};

FunctionSource relu() {
  FormulaStep step{};
  step.activation = Activation::kRelu;
  return {step};
}

ProgramSource program_of(const std::vector<LayerSource>& layers) {
  ProgramSource program{layers.front().in, layers.back().out, {1, 1}, {}};
  Region in{Region::kInput, 0};
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const bool last = l + 1 == layers.size();
    ProductSource product{
        .layer = layers[l], .gate = {}, .function = {}, .in = in, .out = {}, .other = {}, .then = {}};
    (layers[l].gate_weight != nullptr ? product.gate : product.function) = relu();
    product.out = {last ? Region::kOutput : Region::kScratch + l % 2, 0};
    product.free_to_the_right = true;
    if (!last) program.scratch[l % 2] = std::max(program.scratch[l % 2], layers[l].out);
    in = product.out;
    program.ops.emplace_back(product);
  }
  return program;
}

std::vector<float> expected_row(const Layer& layer, const std::vector<float>& x) {
  float largest = 0.0f;
  bool finite = true;
  for (float v : x) {
    largest = std::max(largest, std::fabs(v));
    finite &= std::isfinite(v);
  }
  const float range = std::max(largest, 0x1p-100f);
  const float row_scale = finite ? range / 127.0f : std::numeric_limits<float>::quiet_NaN();
  const float factor = 127.0f / range;
  std::vector<float> y(layer.out);
  for (std::size_t o = 0; o < layer.out; ++o) {
    const auto linear = [&](const std::int8_t* weight, const float* scale, const float* bias) {
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < layer.in && finite; ++i)
        sum += std::int64_t{weight[o * layer.in + i]} * std::lrintf(x[i] * factor);
      volatile float scaled = static_cast<float>(sum) * scale[o];
      scaled = scaled * row_scale;
      return scaled + bias[o];
    };
    const auto positive = [](float v) { return v < 0.0f ? 0.0f : v; };
    const float up = linear(layer.weight.get(), layer.scale.get(), layer.bias.get());
    y[o] = layer.gated
               ? positive(linear(layer.gate_weight.get(), layer.gate_scale.get(), layer.gate_bias.get())) * up
               : positive(up);
  }
  return y;
}

bool same(const std::vector<float>& a, const float* b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) ? !std::isnan(b[i]) : a[i] != b[i]) return false;
  }
  return true;
}

void check(const std::vector<const Layer*>& layers, const char* isa, unsigned threads, const float* x,
           std::size_t rows) {
  std::vector<LayerSource> sources;
  for (const Layer* layer : layers) sources.push_back(layer->source());
  const MlpKernel kernel(program_of(sources), threads, isa);
  const std::size_t in = kernel.in_features(), out = kernel.out_features();
  const auto y = std::make_unique<float[]>(rows * out);
  kernel.run(x, rows, y.get());
  for (std::size_t r = 0; r < rows; ++r) {
    std::vector<float> value(x + r * in, x + (r + 1) * in);
    for (const Layer* layer : layers) value = expected_row(*layer, value);
    CHECK(same(value, y.get() + r * out));
  }
}

TEST_CASE("shapes around registers groups and panels") {
  for (const Isa* isa : usable_isas(true)) {
    for (std::size_t width : {1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 64, 129}) {
      for (bool gated : {false, true}) {
        const Layer first(width, width + 3, gated), second(width + 3, width, gated);
        for (std::size_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 13, 25}) {
          const auto x = random_floats(rows * width);
          check({&first, &second}, isa->name, 1, x.get(), rows);
        }
      }
    }
  }
}

TEST_CASE("threads agree") {
  const Layer first(300, 700, false), second(700, 500, true), third(500, 33, false);
  for (const Isa* isa : usable_isas(true)) {
    for (unsigned threads : {2u, 3u}) {
      for (std::size_t rows : {1, 4, 6, 40}) {
        const auto x = random_floats(rows * 300);
        check({&first, &second, &third}, isa->name, threads, x.get(), rows);
      }
    }
  }
}

// Sums at the ends of their range, and rows that are not finite.
TEST_CASE("corners") {
  const std::size_t in = 1031, rows = 9;
  Layer layer(in, 35, false);
  for (std::size_t i = 0; i < in; ++i) {
    layer.weight[i] = 127;
    layer.weight[in + i] = -127;
    layer.weight[2 * in + i] = i % 2 == 0 ? 127 : -127;
    layer.weight[3 * in + i] = 0;
  }
  const auto x = random_floats(rows * in);
  for (std::size_t i = 0; i < in; ++i) {
    x[i] = 3.0f;
    x[in + i] = -3.0f;
    x[2 * in + i] = i % 2 == 0 ? 1.0f : -1.0f;
    x[3 * in + i] = 0.0f;
    x[5 * in + i] = i == 7 ? 3e38f : 1.0f;
    x[6 * in + i] = 1e-42f;
  }
  x[7 * in + 1000] = std::numeric_limits<float>::quiet_NaN();
  x[8 * in + 1] = -std::numeric_limits<float>::infinity();
  for (const Isa* isa : usable_isas(true)) check({&layer}, isa->name, 1, x.get(), rows);
}

// The same sums as of the widened weights, in the same order.
TEST_CASE("bfloat16 is float32 of rounded weights") {
  for (const Isa* isa : usable_isas(false)) {
    for (std::size_t in : {1, 2, 3, 63, 64, 65, 127, 128, 129, 300}) {
      for (bool gated : {false, true}) {
        const std::size_t out = 45, rows = 14;
        const auto wide = random_floats(in * out), wide_gate = random_floats(in * out);
        auto narrow = std::make_unique<std::uint16_t[]>(in * out);
        auto narrow_gate = std::make_unique<std::uint16_t[]>(in * out);
        const auto round = [&](float* values, std::uint16_t* halves) {
          for (std::size_t i = 0; i < in * out; ++i) {
            std::uint32_t bits;
            std::memcpy(&bits, values + i, 4);
            bits &= 0xFFFF0000u;
            halves[i] = static_cast<std::uint16_t>(bits >> 16);
            std::memcpy(values + i, &bits, 4);
          }
        };
        round(wide.get(), narrow.get());
        round(wide_gate.get(), narrow_gate.get());
        const auto bias = random_floats(out);
        const LayerSource full{wide.get(), bias.get(), gated ? wide_gate.get() : nullptr, nullptr, in, out};
        const LayerSource half{
            narrow.get(), bias.get(),          gated ? narrow_gate.get() : nullptr, nullptr, in,
            out,          Precision::kBfloat16};
        const MlpKernel expected(program_of({full}), 1, isa->name), kernel(program_of({half}), 1, isa->name);
        const auto x = random_floats(rows * in);
        const auto a = std::make_unique<float[]>(rows * out), b = std::make_unique<float[]>(rows * out);
        for (std::size_t n : {1, 2, 3, 5, 14}) {
          expected.run(x.get(), n, a.get());
          kernel.run(x.get(), n, b.get());
          CHECK(std::memcmp(a.get(), b.get(), n * out * sizeof(float)) == 0);
        }
      }
    }
  }
}

TEST_CASE("what cannot be multiplied is refused") {
  const Layer layer(5, 6, true);
  const auto refused = [](const LayerSource& source) {
    try {
      const MlpKernel kernel(program_of({source}), 1, nullptr);
      return false;
    } catch (const std::invalid_argument&) {
      return true;
    }
  };
  LayerSource source = layer.source();
  CHECK(!refused(source));
  source.gate_scale = nullptr;
  CHECK(refused(source));
}

}  // namespace
