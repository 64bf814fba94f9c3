// Activations over a tile in memory, gated or not, one function per activation.
#pragma once

#include <cstddef>
#include <utility>

#include "tile/activation_math.hpp"

namespace fused_mlp {

template <class V>
struct TileActivation {
  using Reg = typename V::Reg;
  static constexpr std::size_t kPanel = std::size_t{V::kLanes} * V::kVectors;

  // src (rows, columns) -> dst (rows, columns), or (rows, columns / 2) if gated. Whole registers.
  using Function = void (*)(const float* src, std::size_t src_stride, std::size_t rows, std::size_t columns,
                            float* dst, std::size_t dst_stride, float negative_slope);

  template <Activation A>
  static void plain(const float* src, std::size_t src_stride, std::size_t rows, std::size_t columns,
                    float* dst, std::size_t dst_stride, float negative_slope) {
    const Reg slope = V::set1(negative_slope);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; c += V::kLanes) {
        const Reg x = V::load(src + r * src_stride + c);
        V::store(dst + r * dst_stride + c, Math<V>::template apply<A>(x, slope));
      }
    }
  }

  // The first half of each panel is the gate, the second half the up projection.
  template <Activation A>
  static void gated(const float* src, std::size_t src_stride, std::size_t rows, std::size_t columns,
                    float* dst, std::size_t dst_stride, float negative_slope) {
    const Reg slope = V::set1(negative_slope);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; c += kPanel) {
        for (std::size_t h = 0; h < kPanel / 2; h += V::kLanes) {
          const float* gate = src + r * src_stride + c + h;
          const Reg up = V::load(gate + kPanel / 2);
          V::store(dst + r * dst_stride + c / 2 + h, Math<V>::template apply<A>(V::load(gate), slope) * up);
        }
      }
    }
  }

  static Function of(Activation a, bool is_gated) {
    return pick(a, is_gated, std::make_integer_sequence<int, kElementwiseActivations>{});
  }

  // Applies the activation to n contiguous values. The tail uses a whole register too: same rounding.
  static void run(Activation a, float negative_slope, const float* x, float* y, std::size_t n) {
    const Function function = of(a, false);
    const std::size_t body = n / V::kLanes * V::kLanes;
    function(x, 0, 1, body, y, 0, negative_slope);
    if (body < n) {
      alignas(64) float tail[V::kLanes] = {};
      __builtin_memcpy(tail, x + body, (n - body) * sizeof(float));
      function(tail, 0, 1, V::kLanes, tail, 0, negative_slope);
      __builtin_memcpy(y + body, tail, (n - body) * sizeof(float));
    }
  }

 private:
  template <int... I>
  static Function pick(Activation a, bool is_gated, std::integer_sequence<int, I...>) {
    static constexpr Function plains[] = {plain<static_cast<Activation>(I)>...};
    static constexpr Function gates[] = {gated<static_cast<Activation>(I)>...};
    return (is_gated ? gates : plains)[static_cast<int>(a)];
  }
};

}  // namespace fused_mlp
