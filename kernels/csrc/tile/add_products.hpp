// SPDX-License-Identifier: Apache-2.0
// One step of a register tile, for every kind of weights: R rows times N registers of weights, added to R x N
// sums.
#pragma once

namespace fused_mlp {

// input(r): the input of row r, in all lanes. weight(v): the v-th register of weights. add(sum, input,
// weight): the new sum.
template <int R, int N, class Sum, class Input, class Weight, class Add>
[[gnu::always_inline]] inline void add_products(Sum (&sum)[R][N], const Input& input, const Weight& weight,
                                                const Add& add) {
  if constexpr (R <= 3) {
    // Few rows, many columns: keep the inputs in registers and stream the weights.
    decltype(input(0)) in[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) in[r] = input(r);
#pragma GCC unroll 16
    for (int v = 0; v < N; ++v) {
      const auto w = weight(v);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[r][v] = add(sum[r][v], in[r], w);
    }
  } else {
    decltype(weight(0)) w[N];
#pragma GCC unroll 16
    for (int v = 0; v < N; ++v) w[v] = weight(v);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const auto in = input(r);
#pragma GCC unroll 16
      for (int v = 0; v < N; ++v) sum[r][v] = add(sum[r][v], in, w[v]);
    }
  }
}

}  // namespace fused_mlp
