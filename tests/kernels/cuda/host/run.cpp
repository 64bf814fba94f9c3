#include "fused_mlp.cu"

extern "C" void run(int columns, int lines, int threads, const float* x, const half* w1, const float* b1, const half* w2,
                    const float* b2, float* y, int rows, int in, int in_padded, int hidden, int hidden_padded, int out) {
  launch(columns, lines, threads,
         [=] { fused_mlp(x, w1, b1, w2, b2, y, rows, in, in_padded, hidden, hidden_padded, out); });
}
