// SPDX-License-Identifier: Apache-2.0
// A program as the kernel runs it: operations on regions of buffers, in order. Built once at load from what
// Python hands over (kernels/backends/cpu_lowering.py), checked, and immutable from then on.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <variant>
#include <vector>

#include "isa/isa.hpp"
#include "model/float_buffer.hpp"
#include "model/pack.hpp"

namespace fused_mlp {

// Where a value is: some columns of a buffer. Values that are concatenated lie side by side in one buffer,
// and a slice of a value is a part of its region.
struct Region {
  static constexpr std::size_t kInput = 0;
  static constexpr std::size_t kOutput = 1;
  static constexpr std::size_t kScratch = 2;  // the first of the scratch buffers
  std::size_t buffer = kInput;
  std::size_t column = 0;
};

// A function as its steps. None: the identity. One step with an activation of register 0: that activation.
using FunctionSource = std::vector<FormulaStep>;

struct ProductSource {
  LayerSource layer;
  FunctionSource gate;      // of the gate, for a gated layer
  FunctionSource function;  // of the product; after the gate, for a gated layer
  Region in;
  Region out;
  bool free_to_the_right = false;  // nothing that is still needed lies to the right of `out` in its buffer
  std::optional<Region> other;     // combined with the result
  Combination combination = Combination::kAdd;
  bool swapped = false;
  FunctionSource then;
};

struct RowSource {
  RowKind kind = RowKind::kMap;
  std::size_t width = 0;
  Region in;
  std::optional<Region> other;  // for kCombine
  Region out;
  Combination combination = Combination::kAdd;
  float eps = 0;
  const float* weight = nullptr;  // (width,), or null
  const float* bias = nullptr;
  FunctionSource then;
  std::optional<Region> third = std::nullopt;  // for kWhere
  // See RowOp.
  std::size_t in_width = 0;
  std::size_t groups = 1;
  std::size_t count = 0;
  Reduction reduction = Reduction::kSum;
  bool flag = false;
};

// A lookup in a table that outlives the kernel.
struct LookupSource {
  Lookup lookup;
  Region ids;
  std::optional<Region> factors;
  Region out;
};

// All of them at once, so that their cache misses overlap. None reads what another one writes.
using LookupsSource = std::vector<LookupSource>;

// Bounds of ids in the input: columns [first, last) hold numbers from 0 to size - 1, or -1 if `absent`.
struct IdLimit {
  std::size_t first = 0;
  std::size_t last = 0;
  std::int32_t size = 0;
  bool absent = false;
};

struct ProgramSource {
  std::size_t in_features = 0;
  std::size_t out_features = 0;
  std::vector<std::size_t> scratch;  // widths of the scratch buffers
  std::vector<std::variant<ProductSource, RowSource, LookupsSource>> ops;
  std::vector<IdLimit> limits = {};
};

// A region in the arrays of a call: element (r, c) is at bases[base][rows * per_row + r * stride + column +
// c], where the bases are x, y and the scratch space, and `rows` is the number of rows that the space is for.
struct Location {
  std::size_t base;
  std::size_t per_row;
  std::size_t column;
  std::size_t stride;
};

struct Op {
  bool product;
  bool quantizes;            // if no product: writes quantized rows of row.width, and nothing else
  std::size_t number;        // of the operation in the source
  std::size_t quantized_by;  // for a product of int8: the operation that quantizes its rows
  bool padded;               // for a product: whole panels fit into its region
  Location in;
  Location out;
  Location other;     // `in` again where there is none
  Location third;     // the same
  PackedLayer layer;  // if product
  RowOp row;          // if not; of lookups, `width` counts all that they write
  std::size_t first_lookup = 0;
  std::size_t lookups = 0;  // 0 for all other operations
};

struct PlacedLookup {
  Lookup lookup;
  Location ids;
  Location factors;
  Location out;
  bool has_factors;
};

class Program {
 public:
  // Throws std::invalid_argument for regions outside of their buffers, or widths that do not fit.
  Program(const ProgramSource& source, const Isa& isa);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const std::vector<Op>& ops() const { return ops_; }
  const std::vector<PlacedLookup>& lookups() const { return lookups_; }
  bool has_ids() const { return !limits_.empty(); }
  // Whether all ids in these rows are within their limits.
  bool ids_fit(const float* x, std::size_t rows) const;
  std::size_t in_features() const { return widths_[Region::kInput]; }
  std::size_t out_features() const { return widths_[Region::kOutput]; }
  bool streamed() const { return streamed_; }  // its weights are read from memory on every call
  bool multiplies_input() const { return multiplies_input_; }       // as it is, not quantized
  std::size_t scratch_per_row() const { return scratch_per_row_; }  // floats
  std::size_t quantized_per_row() const { return quantized_floats_ > 0 ? strides_.back() : 0; }
  std::size_t memory_bytes() const;  // of packed weights and vectors

  // Belongs to an operation or a lookup.
  struct Regions {
    Region in;
    Region out;
    Region other;
    Region third;
  };
  struct Columns {
    Region region;
    std::size_t width;
  };
  using Reads = std::vector<Columns>;
  const std::vector<std::size_t>& widths() const { return widths_; }  // of the buffers
  Location locate(const Region& region) const;
  Reads reads(std::size_t op) const;  // of an operation that is no lookups; a product's input first
  Columns write(std::size_t op) const;
  const Regions& lookup_regions(std::size_t lookup) const { return lookup_regions_[lookup]; }

 private:
  Op make_op() const;  // a row operation that does nothing yet
  void add(const ProductSource& source, const Isa& isa);
  void add(const RowSource& source, const Isa& isa);
  void add(const LookupsSource& source, const Isa& isa);
  void overwrites(const Region& out) {
    if (out.buffer == quantized_.buffer) last_quantization_ = kNone;
  }
  Region quantize(const Region& in, std::size_t width, const Isa& isa);
  Function keep(const FunctionSource& source);
  const float* keep(const float* vector, std::size_t width, std::size_t panel);
  void check(const Region& region, std::size_t width, bool written) const;
  void check_groups(const RowSource& source, std::size_t in_width) const;
  void lay_out();

  std::vector<Op> ops_;
  std::vector<PlacedLookup> lookups_;
  std::vector<Regions> lookup_regions_;  // ids, out, factors
  std::vector<IdLimit> limits_;
  std::vector<Regions> regions_;
  std::size_t number_ = 0;  // of the operation that is added
  // The last operation that quantizes, while the rows that it has read are as they were, and these rows.
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::size_t last_quantization_ = kNone;
  Region quantized_;
  std::size_t quantized_buffer_ = 0;  // comes after the scratch buffers of the source
  std::size_t quantized_floats_ = 0;  // of the widest quantized row
  std::vector<std::size_t> widths_;   // of the buffers, without padding
  std::vector<std::size_t> strides_;  // in floats; of scratch buffers with space for whole panels
  std::vector<std::size_t> starts_;   // of the buffers in the scratch space of a row
  std::size_t scratch_per_row_ = 0;
  bool streamed_ = false;
  bool multiplies_input_ = false;
  // Owns the memory that the operations point to.
  std::vector<LayerStorage> layers_;
  std::vector<FloatBuffer> vectors_;
  std::deque<FunctionSource> formulas_;
  std::deque<Epilogue> epilogues_;
};

}  // namespace fused_mlp
