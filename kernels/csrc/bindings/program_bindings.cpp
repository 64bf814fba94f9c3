// SPDX-License-Identifier: Apache-2.0
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/register.hpp"

namespace nb = nanobind;

namespace fused_mlp {

namespace {

using Matrix = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;  // of any dtype
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Place = std::pair<std::size_t, std::size_t>;  // buffer, column
// name, operands (-1: the constant), register of the result, constant, parameters
using Step = std::tuple<std::string, std::vector<int>, int, float, std::vector<float>>;
using Steps = std::vector<Step>;

constexpr std::array<std::string_view, 16> kRowNames = {
    "map",   "combine",   "affine", "layer",  "rms",  "l2",  "softmax", "log_softmax",
    "where", "bucketize", "argmax", "number", "pick", "dot", "reduce",  "repeat"};
constexpr std::array<std::string_view, 3> kReductionNames = {"sum", "mean", "max"};

template <class Value, class Names>
std::optional<Value> find(const Names& names, std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Value>(found - names.begin());
}

template <class Value, class Names>
Value named(const Names& names, const std::string& name) {
  const std::optional<Value> found = find<Value>(names, name);
  if (!found) throw std::invalid_argument("unknown operation '" + name + "'");
  return *found;
}

void expect(bool fits, const char* what) {
  if (!fits) throw std::invalid_argument(std::string(what) + ": its shape does not match the step");
}

FunctionSource function_of(const Steps& steps) {
  FunctionSource source;
  for (const auto& [name, operands, to, constant, parameters] : steps) {
    FormulaStep step{};
    step.to = static_cast<std::int16_t>(to);
    step.constant = constant;
    const auto combination = find<Combination>(kCombinationNames, name);
    step.binary = combination.has_value();
    if (operands.size() != (step.binary ? 2u : 1u) || parameters.size() > kParameters) {
      throw std::invalid_argument("operation '" + name + "': wrong number of operands or parameters");
    }
    step.a = static_cast<std::int16_t>(operands[0]);
    if (step.binary) {
      step.combination = *combination;
      step.b = static_cast<std::int16_t>(operands[1]);
    } else {
      step.activation = named<Activation>(kActivationNames, name);
    }
    std::copy(parameters.begin(), parameters.end(), step.parameters);
    source.push_back(step);
  }
  return source;
}

Region region_of(const Place& place) { return {place.first, place.second}; }

std::optional<Region> region_of(const std::optional<Place>& place) {
  return place ? std::optional(region_of(*place)) : std::nullopt;
}

const float* data_of(const std::optional<Vector>& vector, std::size_t width, const char* what) {
  if (!vector) return nullptr;
  expect(vector->shape(0) == width, what);
  return vector->data();
}

Precision precision_of(const Matrix& weight) {
  if (weight.dtype() == nb::dtype<float>()) return Precision::kFloat32;
  if (weight.dtype() == nb::dtype<std::uint16_t>()) return Precision::kBfloat16;
  if (weight.dtype() == nb::dtype<std::int8_t>()) return Precision::kInt8;
  throw std::invalid_argument("weight: expected float32, uint16 (the bits of bfloat16) or int8");
}

// The sources below point into these arrays, which Python keeps alive.
struct ProductArguments {
  Matrix weight;
  std::optional<Vector> bias;
  std::optional<Matrix> gate_weight;
  std::optional<Vector> gate_bias;
  std::optional<Vector> scale;
  std::optional<Vector> gate_scale;
  ProductSource source;

  ProductArguments(Matrix weight_, std::optional<Vector> bias_, std::optional<Matrix> gate_weight_,
                   std::optional<Vector> gate_bias_, std::optional<Vector> scale_,
                   std::optional<Vector> gate_scale_, const Steps& gate, const Steps& function,
                   const Place& input, const Place& output, bool free_to_the_right,
                   const std::optional<Place>& other, const std::string& combination, bool swapped,
                   const Steps& then)
      : weight(std::move(weight_)),
        bias(std::move(bias_)),
        gate_weight(std::move(gate_weight_)),
        gate_bias(std::move(gate_bias_)),
        scale(std::move(scale_)),
        gate_scale(std::move(gate_scale_)) {
    const std::size_t out = weight.shape(0), in = weight.shape(1);
    expect(in > 0 && out > 0, "weight");
    if (gate_weight) {
      expect(gate_weight->shape(0) == out && gate_weight->shape(1) == in, "gate_weight");
      if (precision_of(*gate_weight) != precision_of(weight)) {
        throw std::invalid_argument("gate_weight: expected the dtype of weight");
      }
    }
    source = {.layer = {.weight = weight.data(),
                        .bias = data_of(bias, out, "bias"),
                        .gate_weight = gate_weight ? gate_weight->data() : nullptr,
                        .gate_bias = data_of(gate_bias, out, "gate_bias"),
                        .in = in,
                        .out = out,
                        .precision = precision_of(weight),
                        .scale = data_of(scale, out, "scale"),
                        .gate_scale = data_of(gate_scale, out, "gate_scale")},
              .gate = function_of(gate),
              .function = function_of(function),
              .in = region_of(input),
              .out = region_of(output),
              .free_to_the_right = free_to_the_right,
              .other = region_of(other),
              .combination = named<Combination>(kCombinationNames, combination),
              .swapped = swapped,
              .then = function_of(then)};
  }
};

struct RowArguments {
  std::optional<Vector> weight;
  std::optional<Vector> bias;
  RowSource source;

  RowArguments(const std::string& kind, std::size_t width, const Place& input, const Place& output,
               const std::optional<Place>& other, const std::string& combination, float eps,
               std::optional<Vector> weight_, std::optional<Vector> bias_, const Steps& then,
               const std::optional<Place>& third, std::size_t in_width, std::size_t groups, std::size_t count,
               const std::string& reduction, bool flag)
      : weight(std::move(weight_)), bias(std::move(bias_)) {
    const auto row = named<RowKind>(kRowNames, kind);
    const std::size_t weights = row == RowKind::kBucketize ? count : width;
    source = {.kind = row,
              .width = width,
              .in = region_of(input),
              .other = region_of(other),
              .out = region_of(output),
              .combination = named<Combination>(kCombinationNames, combination),
              .eps = eps,
              .weight = data_of(weight, weights, "weight"),
              .bias = data_of(bias, width, "bias"),
              .then = function_of(then),
              .third = region_of(third),
              .in_width = in_width,
              .groups = groups,
              .count = count,
              .reduction = named<Reduction>(kReductionNames, reduction),
              .flag = flag};
  }
};

// One lookup in a table, which the kernel reads where it is.
struct LookupArguments {
  Matrix table;
  std::optional<Vector> scale;
  LookupSource source;

  LookupArguments(Matrix table_, std::optional<Vector> scale_, const Place& input, std::size_t ids,
                  const Place& output, const std::optional<std::string>& bag, std::int32_t padding,
                  const std::optional<Place>& factors)
      : table(std::move(table_)), scale(std::move(scale_)) {
    source = {.lookup = {.table = table.data(),
                         .scales = data_of(scale, table.shape(0), "scale"),
                         .precision = precision_of(table),
                         .size = table.shape(0),
                         .features = table.shape(1),
                         .ids = ids,
                         .bag = bag.has_value(),
                         .reduction = named<Reduction>(kReductionNames, bag.value_or("sum")),
                         .padding = padding},
              .ids = region_of(input),
              .factors = region_of(factors),
              .out = region_of(output)};
  }
};

void add(ProgramSource& program, const ProductArguments& op) { program.ops.emplace_back(op.source); }
void add(ProgramSource& program, const RowArguments& op) { program.ops.emplace_back(op.source); }
void add(ProgramSource& program, const std::vector<LookupArguments>& lookups) {
  LookupsSource sources;
  for (const LookupArguments& each : lookups) sources.push_back(each.source);
  program.ops.emplace_back(std::move(sources));
}

using Limit = std::tuple<std::size_t, std::size_t, std::int32_t, bool>;

// Python keeps the tables alive as long as the kernel.
void construct(
    MlpKernel* self, std::size_t in_features, std::size_t out_features,
    const std::vector<std::size_t>& scratch,
    const std::vector<std::variant<ProductArguments, RowArguments, std::vector<LookupArguments>>>& ops,
    unsigned threads, const std::optional<std::string>& isa, const std::vector<Limit>& limits,
    const nb::list&) {
  ProgramSource program{in_features, out_features, scratch, {}, {}};
  for (const auto& op : ops) std::visit([&](const auto& each) { add(program, each); }, op);
  for (const auto& [first, last, size, absent] : limits)
    program.limits.push_back({first, last, size, absent});
  const nb::gil_scoped_release released;  // models are loaded in parallel, and packing takes most of the time
  new (self) MlpKernel(program, threads, isa ? isa->c_str() : nullptr);
}

}  // namespace

void register_program(nb::module_& m, nb::class_<MlpKernel>& kernel) {
  nb::class_<ProductArguments>(m, "Product")
      .def(
          nb::init<Matrix, std::optional<Vector>, std::optional<Matrix>, std::optional<Vector>,
                   std::optional<Vector>, std::optional<Vector>, const Steps&, const Steps&, const Place&,
                   const Place&, bool, const std::optional<Place>&, const std::string&, bool, const Steps&>(),
          nb::kw_only(), nb::arg("weight"), nb::arg("bias").none(), nb::arg("gate_weight").none(),
          nb::arg("gate_bias").none(), nb::arg("scale").none(), nb::arg("gate_scale").none(), nb::arg("gate"),
          nb::arg("function"), nb::arg("input"), nb::arg("output"), nb::arg("free_to_the_right"),
          nb::arg("other").none(), nb::arg("combination"), nb::arg("swapped"), nb::arg("then"));
  nb::class_<RowArguments>(m, "Row").def(
      nb::init<const std::string&, std::size_t, const Place&, const Place&, const std::optional<Place>&,
               const std::string&, float, std::optional<Vector>, std::optional<Vector>, const Steps&,
               const std::optional<Place>&, std::size_t, std::size_t, std::size_t, const std::string&,
               bool>(),
      nb::kw_only(), nb::arg("kind"), nb::arg("width"), nb::arg("input"), nb::arg("output"),
      nb::arg("other").none(), nb::arg("combination"), nb::arg("eps"), nb::arg("weight").none(),
      nb::arg("bias").none(), nb::arg("then"), nb::arg("third").none() = nb::none(), nb::arg("in_width") = 0,
      nb::arg("groups") = 1, nb::arg("count") = 0, nb::arg("reduction") = "sum", nb::arg("flag") = false);
  nb::class_<LookupArguments>(m, "Lookup")
      .def(nb::init<Matrix, std::optional<Vector>, const Place&, std::size_t, const Place&,
                    const std::optional<std::string>&, std::int32_t, const std::optional<Place>&>(),
           nb::kw_only(), nb::arg("table"), nb::arg("scale").none(), nb::arg("input"), nb::arg("ids"),
           nb::arg("output"), nb::arg("bag").none(), nb::arg("padding"), nb::arg("factors").none());
  kernel.def("__init__", construct, nb::arg("in_features"), nb::arg("out_features"), nb::arg("scratch"),
             nb::arg("ops"), nb::arg("threads"), nb::arg("isa").none(), nb::arg("limits"), nb::arg("tables"),
             nb::keep_alive<1, 9>());
}

}  // namespace fused_mlp
