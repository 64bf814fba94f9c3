// The functions of one instruction set, as a table. Each isa_*.cpp defines one table and is built with its
// own -m flags; dispatch.cpp selects a table at run time.
#pragma once

#include <cstddef>

#include "tile/activation.hpp"

namespace fused_mlp {

// The summation order of every output element, on every path: each block of this many products is summed from
// zero, and the block sums are added to the bias in order. The fixed order makes rows batch-invariant; short
// blocks reduce the rounding error of long sums; and a single narrow row can compute several blocks at once
// to hide the latency of FMA.
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
  bool streamed;  // the model does not fit in the caches: every call reads its weights from memory
  float negative_slope;
};

// x: (rows, stride) -> y: (rows, stride), for the columns of panels [first, last) of a layer.
// If `padded`, y has space for whole panels: columns past `out` may be overwritten with any value.
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

// The time of a layer call by part, summed over its tiles, in ticks of the processor's counter. Bias and relu
// are applied in the registers of the tile and therefore count as product.
struct TileTimes {
  unsigned long long product = 0;
  unsigned long long epilogue = 0;  // activation, gate, and the copy of a partial tile
  unsigned long long tiles = 0;
};

struct Isa {
  const char* name;
  std::size_t panel;     // columns of a weight panel
  std::size_t max_rows;  // rows of the largest register tile
  void (*run_layer)(const PackedLayer&, const LayerCall&);
  void (*activate)(Activation, float negative_slope, const float* x, float* y, std::size_t n);
  void (*softmax)(float* row, std::size_t n, bool log);
  // Like run_layer, but reads the counter two or three times per tile.
  void (*run_layer_timed)(const PackedLayer&, const LayerCall&, TileTimes*);
  // For probe.hpp.
  double (*multiply_add)(long rounds);  // returns the number of floating point operations
  void (*read)(const float* data, std::size_t floats);
};

extern const Isa kPortableIsa;
#if defined(__x86_64__)
extern const Isa kAvx2Isa;
extern const Isa kAvx512Isa;
#endif

// The instruction set `name`, else that of FUSED_MLP_ISA, else the best of this machine. Throws
// std::invalid_argument, which lists the usable ones, if it is unknown or cannot run here.
const Isa& choose_isa(const char* name);
// The instruction sets that this machine can run, best first.
const Isa* const* usable_isas(std::size_t* count);

}  // namespace fused_mlp
