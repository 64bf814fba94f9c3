// What one instruction set offers to the kernel: a table of functions over packed layers. One table per
// translation unit isa_*.cpp, each built with its own -m flags; dispatch.cpp picks one at run time.
#pragma once

#include <cstddef>

#include "activation.hpp"

namespace fused_mlp {

// The order in which every output element is summed, on every path: blocks of this many products are
// added up from zero, and the block sums are added, in order, to the bias. A fixed order makes rows
// batch-invariant; short blocks keep the rounding error of long sums down; and a single narrow row can
// run several blocks at once to hide the latency of fused multiply-add.
inline constexpr std::size_t kSumBlock = 64;

// A layer as packed by pack.hpp: [panels][in][panel width] weights, zero-padded columns.
// A gated layer's panel holds the gate's columns in its first half and the up projection's in its second.
struct PackedLayer {
  const float* weights;
  const float* bias;  // [panels][panel width], zeros where the layer has none
  std::size_t in;
  std::size_t out;
  std::size_t panels;
  Activation activation;
  bool gated;
  bool streamed;  // the model's weights outgrow the caches: they come from memory, every time
  float negative_slope;
};

// x: (rows, stride) -> y: (rows, stride), for the columns of panels [first, last) of a layer.
// When `padded`, y has room for whole panels: its columns past `out` may be written (with anything).
struct LayerCall {
  const float* x;
  std::size_t x_stride;
  std::size_t rows;
  float* y;
  std::size_t y_stride;
  std::size_t first;
  std::size_t last;
  bool padded;
};

// Where the time of a layer call went, in ticks of the processor's own counter, summed over its tiles. The
// bias, and relu, are added in the registers of the tile: they are part of its product, and cannot be told
// apart.
struct TileTimes {
  unsigned long long product = 0;
  unsigned long long epilogue = 0;  // activation, gate, and the copy of a tile that does not fit
  unsigned long long tiles = 0;
};

struct Isa {
  const char* name;
  std::size_t panel;     // columns of a weight panel
  std::size_t max_rows;  // rows of the largest register tile
  void (*run_layer)(const PackedLayer&, const LayerCall&);
  void (*activate)(Activation, float negative_slope, const float* x, float* y, std::size_t n);
  void (*softmax)(float* row, std::size_t n, bool log);
  // The same as run_layer, slower by two readings of the counter per tile.
  void (*run_layer_timed)(const PackedLayer&, const LayerCall&, TileTimes*);
  // For measuring what the machine can do (probe.hpp).
  double (*multiply_add)(long rounds);  // returns the floating point operations it did
  void (*read)(const float* data, std::size_t floats);
};

extern const Isa kPortableIsa;
#if defined(__x86_64__)
extern const Isa kAvx2Isa;
extern const Isa kAvx512Isa;
#endif

// The best instruction set of this machine, or the one named (by the caller, else by FUSED_MLP_ISA).
// Throws std::invalid_argument, naming those that can run, when it is unknown or cannot run here.
const Isa& choose_isa(const char* name);
// Those this machine can run, best first.
const Isa* const* usable_isas(std::size_t* count);

}  // namespace fused_mlp
