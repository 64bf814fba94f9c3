// SPDX-License-Identifier: Apache-2.0
#include "model/program.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "profile/phases.hpp"

namespace fused_mlp {

namespace {

// Larger models are read from memory on every call, not from a cache. A constant, because virtual machines do
// not report the size of their share of the last level cache.
constexpr std::size_t kStreamedBytes = std::size_t{24} << 20;

void expect(bool fits, const std::string& what) {
  if (!fits) throw std::invalid_argument(what);
}

}  // namespace

Program::Program(const ProgramSource& source, const Isa& isa) {
  expect(!source.ops.empty(), "expected at least one step, got none");
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
  std::vector<std::size_t> per_row(strides_.size(), 0);
  for (std::size_t b = Region::kScratch; b < strides_.size(); ++b) {
    // An odd number of cache lines: with a power of two, all rows would map to the same cache sets.
    strides_[b] = (strides_[b] + 31) / 32 * 32 + 16;
    per_row[b] = scratch_per_row_;
    scratch_per_row_ += strides_[b];
  }
  const auto locate = [&](const Region& region) {
    return Location{std::min(region.buffer, Region::kScratch), per_row[region.buffer], region.column,
                    strides_[region.buffer]};
  };
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    ops_[i].in = locate(regions_[i].in);
    ops_[i].out = locate(regions_[i].out);
    ops_[i].other = locate(regions_[i].other);
  }
}

void Program::check(const Region& region, std::size_t width, bool written) const {
  expect(region.buffer < widths_.size() && width > 0 && width <= widths_[region.buffer] &&
             region.column <= widths_[region.buffer] - width,
         "step " + std::to_string(number_) + ": a region outside of its buffer");
  expect(!written || region.buffer != Region::kInput,
         "step " + std::to_string(number_) + ": would write to the input");
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
  if (source.out.buffer == quantized_.buffer) last_quantization_ = kNone;
  Op op{.product = true,
        .quantizes = false,
        .number = number_,
        .quantized_by = quantized_by,
        .padded = false,
        .in = {},
        .out = {},
        .other = {},
        .layer = layers_.back().packed,
        .row = {}};
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
  regions_.push_back({in, source.out, source.other.value_or(in)});
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
  Op op{.product = false,
        .quantizes = true,
        .number = number_,
        .quantized_by = kNone,
        .padded = false,
        .in = {},
        .out = {},
        .other = {},
        .layer = {},
        .row = {}};
  op.row.width = width;
  ops_.push_back(op);
  regions_.push_back({in, out, in});
  return out;
}

void Program::add(const RowSource& source, const Isa& isa) {
  check(source.in, source.width, false);
  check(source.out, source.width, true);
  expect(source.other.has_value() == (source.kind == RowKind::kCombine), "two values where one is combined");
  if (source.other) check(*source.other, source.width, false);
  if (source.out.buffer == quantized_.buffer) last_quantization_ = kNone;
  ops_.push_back({.product = false,
                  .quantizes = false,
                  .number = number_,
                  .quantized_by = kNone,
                  .padded = false,
                  .in = {},
                  .out = {},
                  .other = {},
                  .layer = {},
                  .row = {.kind = source.kind,
                          .combination = source.combination,
                          .eps = source.eps,
                          .width = source.width,
                          .weight = keep(source.weight, source.width, isa.panel),
                          .bias = keep(source.bias, source.width, isa.panel),
                          .then = keep(source.then)}});
  regions_.push_back({source.in, source.out, source.other.value_or(source.in)});
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
