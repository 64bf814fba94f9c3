// SPDX-License-Identifier: Apache-2.0
// The functions of one instruction set, as a table. portable.cpp, avx2.cpp and avx512.cpp define one table
// each and are built with their own -m flags; dispatch.cpp selects a table at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tile/function.hpp"

namespace fused_mlp {

// The summation order of every output element, on every path: each block of this many products is summed from
// zero, and the block sums are added to the bias in order. The fixed order makes rows batch-invariant; short
// blocks reduce the rounding error of long sums; and a single narrow row can compute several blocks at once
// to hide the latency of FMA.
inline constexpr std::size_t kSumBlock = 64;

// Rows a multiple of 4 KiB apart lie in the same set of the L1 cache, which holds 8 lines on most processors:
// a tile of more rows would evict its own values. Such rows are copied, or written by way of a small buffer.
inline constexpr std::size_t kLineFloats = 16;  // floats per cache line
inline constexpr std::size_t kCacheWays = 8;
inline constexpr std::size_t kAliasFloats = 4096 / sizeof(float);

// How the weights of a product are kept and multiplied.
enum class Precision : unsigned char {
  kFloat32,
  kBfloat16,  // widened to float32 as they are loaded: the same sums as of float32 weights
  kInt8,      // times rows quantized to int8
};
inline constexpr std::size_t kPrecisions = 3;
inline constexpr std::size_t bytes_per_weight(Precision precision) {
  return precision == Precision::kFloat32 ? 4 : precision == Precision::kBfloat16 ? 2 : 1;
}

// A quantized row, in floats: its scale, padded to a cache line, then the values in groups of 4 bytes.
inline constexpr std::size_t kQuantizedHeader = 16;

// Steps after a product, and a gate, while a tile is in the L1 cache: then(function(value) combined with the
// same element of another value).
struct Epilogue {
  Function function;  // of a gated layer's product of halves; identity for the others
  bool combined;
  bool swapped;  // the other value is the first operand
  Combination combination;
  Function then;
};

// A layer as packed by pack.hpp: [panels][in][panel width] weights, zero-padded columns; in bfloat16 and
// int8, 2 or 4 of `in` lie side by side for each column (see FloatProduct and Int8Product). A gated layer's
// panel holds the gate's columns in its first half and the up projection's in its second.
struct PackedLayer {
  Precision precision;
  const void* weights;
  const float* bias;           // [panels][panel width], zeros where the layer has none
  const float* scales;         // of int8 weights, by column
  const std::int32_t* starts;  // of int8 sums, by column: they make up for the offset of the inputs
  std::size_t in;
  std::size_t out;
  std::size_t panels;
  Function function;  // of the product, or of the gate
  bool gated;
  bool streamed;             // the model does not fit in the caches: every call reads its weights from memory
  const Epilogue* epilogue;  // null if nothing follows
};

// x: (rows, stride) -> y: (rows, stride), for the columns of panels [first, last) of a layer.
// For int8 weights, x are quantized rows.
// If `padded`, y has space for whole panels: columns past `out` may be overwritten with any value.
// y overlaps neither x nor `other`.
struct LayerCall {
  const float* x;
  std::size_t x_stride;
  std::size_t rows;
  float* y;
  std::size_t y_stride;
  std::size_t first;
  std::size_t last;
  bool padded;
  const float* other = nullptr;  // what the epilogue combines the product with: (rows, out)
  std::size_t other_stride = 0;
  // Float32 sums: the start value in place of the bias, and the parts in order. Null: sums over all of x.
  const float* start = nullptr;  // [panels][panel width]
  const struct SumPart* parts = nullptr;
  std::size_t part_count = 0;
  const float* sums = nullptr;  // that were computed before
};

// Products of columns [first, first + count) of x, where `first` is a multiple of kSumBlock; or if count is
// 0, the sum at LayerCall::sums + sum: [panels][panel width].
struct SumPart {
  std::size_t first;
  std::size_t count;
  std::size_t sum;
};

enum class RowKind : unsigned char {
  kMap,      // nothing: copies, or applies `then`
  kCombine,  // x combined with the other value
  kAffine,   // x * weight + bias
  kLayerNorm,
  kRmsNorm,
  kL2Norm,
  kSoftmax,
  kLogSoftmax,
  kWhere,      // other where x is not 0, else third
  kBucketize,  // for each value of x, the number of boundaries (`weight`) below it, as an id
  kArgmax,     // the place of the largest value, as an id
  kNumber,     // ids as floats
  kPick,       // of `groups` parts of x, the one that the id `other` chooses
  kDot,        // dot products of all pairs of `groups` vectors
  kReduce,     // over `groups` vectors, or over the features of each
  kRepeat,     // each of `groups` vectors `count` times
};

enum class Reduction : unsigned char { kSum, kMean, kMax };

// A step that is no matrix product. Norms multiply by `weight` and add `bias`; `then` comes last.
struct RowOp {
  RowKind kind;
  Combination combination;
  float eps;
  std::size_t width;    // of y, and of x where nothing else is said
  const float* weight;  // padded to whole registers, or null
  const float* bias;
  Function then;
  // From kBucketize on.
  std::size_t in = 0;      // width of x
  std::size_t groups = 1;  // vectors in x
  std::size_t count = 0;   // of boundaries, or how often kRepeat repeats
  Reduction reduction = Reduction::kSum;
  // kBucketize: counts equal boundaries too; kDot: each vector with itself too; kReduce: over the features.
  bool flag = false;
};

// x, other, third, y: (rows, width). y may be x or other if they have its width; otherwise they do not
// overlap.
struct RowCall {
  const float* x;
  std::size_t x_stride;
  const float* other;  // x again where there is none
  std::size_t other_stride;
  std::size_t rows;
  float* y;
  std::size_t y_stride;
  const float* third = nullptr;  // for kWhere
  std::size_t third_stride = 0;
};

// Rows of a table: one for each id, side by side, or the sum, mean or maximum of a bag of them.
struct Lookup {
  const void* table = nullptr;    // (size, features) in `precision`, as the caller keeps it: never copied
  const float* scales = nullptr;  // of int8 rows
  Precision precision = Precision::kFloat32;
  std::size_t size = 0;
  std::size_t features = 0;
  std::size_t ids = 0;  // per row of the batch
  bool bag = false;
  Reduction reduction = Reduction::kSum;
  std::int32_t padding = -1;  // an id that does not count in a bag; negative ones never do
  bool prefetched = false;    // it and the tables beside it are too large for the L2 cache
};

// Ids are checked before: they are rows of the table, or negative in a bag.
struct LookupCall {
  const Lookup* lookup;
  const float* ids;  // in the bits of int32
  std::size_t ids_stride;
  const float* factors;  // of a bag's rows, or null
  std::size_t factors_stride;
  float* y;
  std::size_t y_stride;
};

// The time of a layer call by part, summed over its tiles, in ticks of the processor's counter. Bias and relu
// are applied in the registers of the tile and therefore count as product.
struct TileTimes {
  unsigned long long product = 0;
  unsigned long long epilogue = 0;  // functions, gate, combination, and the copy of a partial tile
  unsigned long long tiles = 0;
};

struct Isa {
  const char* name;
  std::size_t panel;     // columns of a weight panel
  std::size_t max_rows;  // rows of the largest register tile
  std::size_t group;     // int8 values that are multiplied at once, for each column
  std::int32_t offset;   // of quantized inputs
  double int8_speed;     // int8 multiply-adds in the time of one of float32
  // By precision.
  void (*run_layer[kPrecisions])(const PackedLayer&, const LayerCall&);
  void (*run_rows)(const RowOp&, const RowCall&);
  void (*run_lookups)(const LookupCall*, std::size_t count, std::size_t rows);
  void (*apply)(const Function&, const float* x, float* y, std::size_t n);
  // Like run_layer, but reads the counter two or three times per tile.
  void (*run_layer_timed[kPrecisions])(const PackedLayer&, const LayerCall&, TileTimes*);
  void (*quantize)(std::size_t width, const RowCall&);
  // For probe.hpp.
  double (*multiply_add)(long rounds);       // returns the number of floating point operations
  double (*multiply_add_int8)(long rounds);  // the same, of integer operations
  void (*read)(const float* data, std::size_t floats);
};

extern const Isa kPortableIsa;
#if defined(__x86_64__)
extern const Isa kAvx2Isa;
extern const Isa kAvxVnniIsa;
extern const Isa kAvx512Isa;
extern const Isa kAvx512VnniIsa;
#elif defined(__aarch64__)
extern const Isa kNeonDotIsa;
#endif

// The instruction set `name`, else that of FUSED_MLP_ISA, else the best of this machine. Throws
// std::invalid_argument, which lists the usable ones, if it is unknown or cannot run here. For a program
// without int8 products: without the extensions that only those use.
const Isa& choose_isa(const char* name, bool int8);
// The instruction sets that this machine can run, best first.
struct IsaList {
  const Isa* list[5];
  std::size_t count = 0;
  const Isa* const* begin() const { return list; }
  const Isa* const* end() const { return list + count; }
};
const IsaList& usable_isas(bool int8);

}  // namespace fused_mlp
