// SPDX-License-Identifier: Apache-2.0
// Functions over arrays and tiles: the named ones, one loop each, and formulas, whose operations run one
// after the other over chunks that stay in the L1 cache. A formula is therefore one pass over memory.
#pragma once

#include <cstddef>
#include <utility>

#include "tile/activation_math.hpp"

namespace fused_mlp {

template <class V>
struct Formulas {
  using Reg = typename V::Reg;
  static constexpr std::size_t kChunk = 128;  // values per register of a formula

  template <Activation A>
  static void apply(const float* a, float* to, std::size_t n, const float* parameters) {
    const typename Math<V>::Parameters with(parameters);
    for (std::size_t i = 0; i < n; i += V::kLanes) {
      V::store(to + i, Math<V>::template apply<A>(V::load(a + i), with));
    }
  }

  // Each operand is an array, or one value if its step is 0.
  template <Combination C>
  static void combine(const float* a, std::size_t a_step, const float* b, std::size_t b_step, float* to,
                      std::size_t n) {
    for (std::size_t i = 0; i < n; i += V::kLanes) {
      V::store(to + i, Math<V>::template combine<C>(V::load(a + i * a_step), V::load(b + i * b_step)));
    }
  }

  // In place, whole registers: x has space for n rounded up.
  static void run_chunk(const Function& function, float (*registers)[kChunk], std::size_t n) {
    for (std::size_t s = 0; s < function.count; ++s) {
      const FormulaStep& step = function.steps[s];
      float* const to = registers[step.to];
      if (!step.binary) {
        unary(step.activation)(registers[step.a], to, n, step.parameters);
        continue;
      }
      alignas(64) float constant[V::kLanes];
      V::store(constant, V::set1(step.constant));
      const bool constant_a = step.a == FormulaStep::kConstant, constant_b = step.b == FormulaStep::kConstant;
      binary(step.combination)(constant_a ? constant : registers[step.a], constant_a ? 0 : 1,
                               constant_b ? constant : registers[step.b], constant_b ? 0 : 1, to, n);
    }
  }

  // (rows, columns) -> (rows, columns). Reads and writes only these; the two may be the same.
  static void run(const Function& function, const float* src, std::size_t src_stride, std::size_t rows,
                  std::size_t columns, float* dst, std::size_t dst_stride) {
    alignas(64) float registers[kFormulaRegisters][kChunk];
    if (columns > kChunk || rows == 1) {
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t c = 0; c < columns; c += kChunk) {
          const std::size_t n = columns - c < kChunk ? columns - c : kChunk;
          clear_tail(registers[0], n);
          __builtin_memcpy(registers[0], src + r * src_stride + c, n * sizeof(float));
          run_chunk(function, registers, n);
          __builtin_memcpy(dst + r * dst_stride + c, registers[0], n * sizeof(float));
        }
      }
      return;
    }
    // Several narrow rows together.
    const std::size_t together = kChunk / columns;
    for (std::size_t row = 0; row < rows; row += together) {
      const std::size_t count = rows - row < together ? rows - row : together;
      clear_tail(registers[0], count * columns);
      for (std::size_t r = 0; r < count; ++r) {
        __builtin_memcpy(registers[0] + r * columns, src + (row + r) * src_stride, columns * sizeof(float));
      }
      run_chunk(function, registers, count * columns);
      for (std::size_t r = 0; r < count; ++r) {
        __builtin_memcpy(dst + (row + r) * dst_stride, registers[0] + r * columns, columns * sizeof(float));
      }
    }
  }

 private:
  // Lanes past the end are computed too, on zeros.
  static void clear_tail(float* x, std::size_t n) {
    if (n % V::kLanes != 0) V::store(x + n / V::kLanes * V::kLanes, V::zero());
  }

  using Unary = void (*)(const float*, float*, std::size_t, const float*);
  static Unary unary(Activation a) {
    return unary_of(a, std::make_integer_sequence<int, kPlainActivations>{});
  }
  template <int... I>
  static Unary unary_of(Activation a, std::integer_sequence<int, I...>) {
    static constexpr Unary all[] = {apply<static_cast<Activation>(I)>...};
    return all[static_cast<int>(a)];
  }

  using Binary = void (*)(const float*, std::size_t, const float*, std::size_t, float*, std::size_t);
  static Binary binary(Combination c) {
    return binary_of(c, std::make_integer_sequence<int, kCombinations>{});
  }
  template <int... I>
  static Binary binary_of(Combination c, std::integer_sequence<int, I...>) {
    static constexpr Binary all[] = {combine<static_cast<Combination>(I)>...};
    return all[static_cast<int>(c)];
  }
};

}  // namespace fused_mlp
