// SPDX-License-Identifier: Apache-2.0
#include "model/program.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "profile/phases.hpp"

namespace fused_mlp {

namespace {

// Larger models are read from memory on every call, not from a cache. A constant, because virtual machines do
// not report the size of their share of the last level cache.
constexpr std::size_t kStreamedBytes = std::size_t{24} << 20;

// Tables up to this size stay in the L2 cache, where prefetching costs more than it saves.
constexpr std::size_t kCachedTables = std::size_t{512} << 10;

void expect(bool fits, const std::string& what) {
  if (!fits) throw std::invalid_argument(what);
}

}  // namespace

Program::Program(const ProgramSource& source, const Isa& isa) {
  expect(!source.ops.empty(), "expected at least one step, got none");
  limits_ = source.limits;
  for (const IdLimit& limit : limits_) {
    expect(limit.first < limit.last && limit.last <= source.in_features, "ids outside of the input");
  }
  widths_ = {source.in_features, source.out_features};
  widths_.insert(widths_.end(), source.scratch.begin(), source.scratch.end());
  strides_ = widths_;
  quantized_buffer_ = widths_.size();
  for (const auto& op : source.ops) {
    std::visit([&](const auto& each) { add(each, isa); }, op);
    ++number_;
  }
  if (quantized_floats_ > 0) {
    widths_.push_back(quantized_floats_);
    strides_.push_back(quantized_floats_);
  }
  lay_out();
  std::size_t floats = 0;
  for (const LayerStorage& layer : layers_) floats += layer.weights.size();
  streamed_ = floats * sizeof(float) > kStreamedBytes;
  for (Op& op : ops_) {
    op.layer.streamed = streamed_;
    multiplies_input_ |= op.product && op.in.base == Region::kInput;
  }
}

std::size_t Program::memory_bytes() const {
  std::size_t floats = 0;
  for (const LayerStorage& layer : layers_) floats += layer.floats();
  for (const FloatBuffer& vector : vectors_) floats += vector.size();
  return floats * sizeof(float);
}

void Program::lay_out() {
  starts_.assign(strides_.size(), 0);
  for (std::size_t b = Region::kScratch; b < strides_.size(); ++b) {
    // An odd number of cache lines: with a power of two, all rows would map to the same cache sets.
    strides_[b] = (strides_[b] + 31) / 32 * 32 + 16;
    starts_[b] = scratch_per_row_;
    scratch_per_row_ += strides_[b];
  }
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    ops_[i].in = locate(regions_[i].in);
    ops_[i].out = locate(regions_[i].out);
    ops_[i].other = locate(regions_[i].other);
    ops_[i].third = locate(regions_[i].third);
  }
  for (std::size_t i = 0; i < lookups_.size(); ++i) {
    lookups_[i].ids = locate(lookup_regions_[i].in);
    lookups_[i].out = locate(lookup_regions_[i].out);
    lookups_[i].factors = locate(lookup_regions_[i].other);
  }
}

Location Program::locate(const Region& region) const {
  return {std::min(region.buffer, Region::kScratch), starts_[region.buffer], region.column,
          strides_[region.buffer]};
}

Program::Reads Program::reads(std::size_t index) const {
  const Op& op = ops_[index];
  const Regions& regions = regions_[index];
  if (op.quantizes) return {{regions.in, op.row.width}};
  if (op.product) {
    const bool quantized = op.layer.precision == Precision::kInt8;
    Reads reads{{regions.in, quantized ? quantized_floats_ : op.layer.in}};
    if (op.layer.epilogue != nullptr && op.layer.epilogue->combined)
      reads.push_back({regions.other, op.layer.out});
    return reads;
  }
  Reads reads{{regions.in, op.row.in}};
  const RowKind kind = op.row.kind;
  if (kind == RowKind::kPick) reads.push_back({regions.other, 1});
  if (kind == RowKind::kCombine || kind == RowKind::kWhere) reads.push_back({regions.other, op.row.width});
  if (kind == RowKind::kWhere) reads.push_back({regions.third, op.row.width});
  return reads;
}

Program::Columns Program::write(std::size_t index) const {
  const Op& op = ops_[index];
  return {regions_[index].out, op.quantizes ? quantized_floats_ : op.product ? op.layer.out : op.row.width};
}

bool Program::ids_fit(const float* x, std::size_t rows) const {
  for (const IdLimit& limit : limits_) {
    // As unsigned numbers, shifted by one where -1 is allowed: one comparison for both ends.
    const std::uint32_t shift = limit.absent ? 1 : 0;
    const std::uint32_t end = static_cast<std::uint32_t>(limit.size) + shift;
    bool fit = true;
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = limit.first; c < limit.last; ++c) {
        std::uint32_t id;
        std::memcpy(&id, x + r * in_features() + c, sizeof id);
        fit &= id + shift < end;
      }
    }
    if (!fit) return false;
  }
  return true;
}

void Program::check(const Region& region, std::size_t width, bool written) const {
  expect(region.buffer < widths_.size() && width > 0 && width <= widths_[region.buffer] &&
             region.column <= widths_[region.buffer] - width,
         "step " + std::to_string(number_) + ": a region outside of its buffer");
  expect(!written || region.buffer != Region::kInput,
         "step " + std::to_string(number_) + ": would write to the input");
}

Op Program::make_op() const {
  Op op{};
  op.number = number_;
  op.quantized_by = kNone;
  return op;
}

void Program::add(const ProductSource& source, const Isa& isa) {
  const LayerSource& layer = source.layer;
  check(source.in, layer.in, false);
  check(source.out, layer.out, true);
  if (source.other) check(*source.other, layer.out, false);
  const RecordedPhase phase(Phase::kPack, number_, layer.out, layer.in, layer.out);
  layers_.push_back(pack_layer(layer, isa));
  Region in = source.in;
  if (layer.precision == Precision::kInt8) in = quantize(source.in, layer.in, isa);
  const std::size_t quantized_by = last_quantization_;
  overwrites(source.out);
  Op op = make_op();
  op.product = true;
  op.quantized_by = quantized_by;
  op.layer = layers_.back().packed;
  op.layer.function = keep(op.layer.gated ? source.gate : source.function);
  Epilogue epilogue{.function = op.layer.gated ? keep(source.function) : Function{},
                    .combined = source.other.has_value(),
                    .swapped = source.swapped,
                    .combination = source.combination,
                    .then = keep(source.then)};
  if (epilogue.combined || !epilogue.function.is_identity() || !epilogue.then.is_identity()) {
    op.layer.epilogue = &epilogues_.emplace_back(epilogue);
  }
  if (source.free_to_the_right && source.out.buffer >= Region::kScratch) {
    op.padded = true;
    const std::size_t columns = op.layer.panels * isa.panel / (op.layer.gated ? 2 : 1);
    std::size_t& stride = strides_[source.out.buffer];
    stride = std::max(stride, source.out.column + columns);
  }
  ops_.push_back(op);
  regions_.push_back({in, source.out, source.other.value_or(in), in});
}

// Adds the operation that quantizes a product's input, into a buffer that all of them share. Products of the
// same rows, one after the other, share the operation too.
Region Program::quantize(const Region& in, std::size_t width, const Isa& isa) {
  const Region out{quantized_buffer_, 0};
  if (last_quantization_ != kNone && ops_[last_quantization_].row.width == width &&
      in.buffer == quantized_.buffer && in.column == quantized_.column) {
    return out;
  }
  quantized_ = in;
  last_quantization_ = ops_.size();
  const std::size_t values = (width + isa.panel - 1) / isa.panel * isa.panel;  // whole registers
  quantized_floats_ = std::max(quantized_floats_, kQuantizedHeader + values / isa.group);
  Op op = make_op();
  op.quantizes = true;
  op.row.width = width;
  ops_.push_back(op);
  regions_.push_back({in, out, in, in});
  return out;
}

void Program::add(const RowSource& source, const Isa& isa) {
  const bool grouped = source.kind >= RowKind::kBucketize;
  const std::size_t in_width = grouped ? source.in_width : source.width;
  check(source.in, in_width, false);
  check(source.out, source.width, true);
  const bool two = source.kind == RowKind::kCombine || source.kind == RowKind::kWhere;
  const bool picks = source.kind == RowKind::kPick;
  expect(source.other.has_value() == (two || picks) &&
             source.third.has_value() == (source.kind == RowKind::kWhere),
         "step " + std::to_string(number_) + ": the wrong number of values");
  if (source.other) check(*source.other, picks ? 1 : source.width, false);
  if (source.third) check(*source.third, source.width, false);
  if (grouped) check_groups(source, in_width);
  overwrites(source.out);
  const std::size_t weights = source.kind == RowKind::kBucketize ? source.count : source.width;
  Op op = make_op();
  op.row = {.kind = source.kind,
            .combination = source.combination,
            .eps = source.eps,
            .width = source.width,
            .weight = keep(source.weight, weights, isa.panel),
            .bias = keep(source.bias, source.width, isa.panel),
            .then = keep(source.then),
            .in = in_width,
            .groups = source.groups,
            .count = source.count,
            .reduction = source.reduction,
            .flag = source.flag};
  ops_.push_back(op);
  regions_.push_back(
      {source.in, source.out, source.other.value_or(source.in), source.third.value_or(source.in)});
}

// That the width of the result is what the vectors of the source make.
void Program::check_groups(const RowSource& source, std::size_t in_width) const {
  const std::size_t groups = source.groups;
  bool fits = groups > 0 && in_width % std::max<std::size_t>(groups, 1) == 0;
  if (fits) {
    const std::size_t length = in_width / groups;
    switch (source.kind) {
      case RowKind::kBucketize:
        fits = source.width == in_width && source.weight != nullptr;
        break;
      case RowKind::kArgmax:
        fits = source.width == 1;
        break;
      case RowKind::kPick:
        fits = source.width == length;
        break;
      case RowKind::kDot:
        fits = source.width == groups * (groups - 1) / 2 + (source.flag ? groups : 0);
        break;
      case RowKind::kReduce:
        fits = source.width == (source.flag ? groups : length);
        break;
      case RowKind::kRepeat:
        fits = source.width == in_width * source.count;
        break;
      default:
        fits = source.width == in_width;
    }
  }
  expect(fits, "step " + std::to_string(number_) + ": widths that do not fit");
}

void Program::add(const LookupsSource& source, const Isa&) {
  expect(!source.empty(), "step " + std::to_string(number_) + ": no lookups");
  Op op = make_op();
  op.first_lookup = lookups_.size();
  op.lookups = source.size();
  std::size_t bytes = 0;
  for (const LookupSource& each : source) {
    bytes += each.lookup.size * each.lookup.features * bytes_per_weight(each.lookup.precision);
  }
  for (const LookupSource& each : source) {
    Lookup lookup = each.lookup;
    lookup.prefetched = bytes > kCachedTables;
    const std::size_t width = lookup.features * (lookup.bag ? 1 : lookup.ids);
    check(each.ids, lookup.ids, false);
    check(each.out, width, true);
    if (each.factors) check(*each.factors, lookup.ids, false);
    expect(lookup.table != nullptr && (lookup.scales != nullptr) == (lookup.precision == Precision::kInt8) &&
               (!each.factors || (lookup.bag && lookup.reduction == Reduction::kSum)),
           "step " + std::to_string(number_) + ": a table without its scales, or factors without a sum");
    overwrites(each.out);
    lookups_.push_back({lookup, {}, {}, {}, each.factors.has_value()});
    lookup_regions_.push_back({each.ids, each.out, each.factors.value_or(each.ids), each.ids});
    op.row.width += width;
  }
  ops_.push_back(op);
  const Regions& first = lookup_regions_[op.first_lookup];
  regions_.push_back({first.in, first.out, first.in, first.in});
}

Function Program::keep(const FunctionSource& source) {
  Function function;
  if (source.empty()) return function;
  for (const FormulaStep& step : source) {
    const auto usable = [&](std::int16_t at) {
      return (at == FormulaStep::kConstant && step.binary) || (at >= 0 && at < kFormulaRegisters);
    };
    expect(usable(step.a) && (!step.binary || usable(step.b)) && step.to >= 0 && step.to < kFormulaRegisters,
           "a formula uses too many registers");
  }
  expect(source.back().to == 0, "a formula has no result");
  const FormulaStep& first = source.front();
  if (source.size() == 1 && !first.binary && first.a == 0) {
    function.activation = first.activation;
    std::copy_n(first.parameters, kParameters, function.parameters);
    return function;
  }
  const FunctionSource& kept = formulas_.emplace_back(source);
  function.activation = Activation::kFormula;
  function.steps = kept.data();
  function.count = kept.size();
  return function;
}

const float* Program::keep(const float* vector, std::size_t width, std::size_t panel) {
  if (vector == nullptr) return nullptr;
  FloatBuffer padded((width + panel - 1) / panel * panel);
  std::copy_n(vector, width, padded.data());
  vectors_.push_back(std::move(padded));
  return vectors_.back().data();
}

}  // namespace fused_mlp
