#include "engine/tensor.hpp"

#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings/errors.hpp"
#include "bindings/register.hpp"

namespace nb = nanobind;

namespace fused_mlp {

namespace {

std::uint32_t rows_or_raise(const TensorCheck& check) {
  if (!check.ok()) raise_refused(Status::invalid_input, check.error);
  return check.rows;
}

}  // namespace

void register_tensor(nb::module_& m) {
  auto dtype = nb::enum_<DType>(m, "DType", "Element types on the wire.");
  dtype.value("fp32", DType::fp32)
      .value("fp16", DType::fp16)
      .value("bf16", DType::bf16)
      .value("fp64", DType::fp64);

  m.def("dtype_name", &dtype_name, nb::arg("dtype"), "'FP32': as in the Open Inference Protocol.");
  m.def(
      "dtype_from_name",
      [](std::string_view name) {
        const auto found = dtype_from_name(name);
        if (!found) raise_refused(Status::invalid_input, unknown_dtype_text(name));
        return *found;
      },
      nb::arg("name"));
  m.def(
      "dtype_from_proto",
      [](std::int64_t number) {
        const auto found = dtype_from_proto(number);
        if (!found) raise_refused(Status::invalid_input, unknown_dtype_text(std::to_string(number)));
        return *found;
      },
      nb::arg("number"), "From fused_mlp.v1.DataType.");
  m.def(
      "check_tensor",
      [](const std::vector<std::int64_t>& shape, DType type, std::uint64_t byte_count,
         std::size_t in_features, std::uint32_t max_request_rows) {
        return rows_or_raise(check_tensor(shape, type, byte_count, in_features, max_request_rows));
      },
      nb::arg("shape"), nb::arg("dtype"), nb::arg("byte_count"), nb::arg("in_features"),
      nb::arg("max_request_rows"), "The row count of a valid tensor; raises Refused (invalid_input).");
  m.def(
      "check_values",
      [](const std::vector<std::int64_t>& shape, std::uint64_t value_count, std::size_t in_features,
         std::uint32_t max_request_rows) {
        return rows_or_raise(check_values(shape, value_count, in_features, max_request_rows));
      },
      nb::arg("shape"), nb::arg("value_count"), nb::arg("in_features"), nb::arg("max_request_rows"),
      "The same for values sent as a repeated field; an empty shape means one row.");
}

}  // namespace fused_mlp
