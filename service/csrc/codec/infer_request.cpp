// SPDX-License-Identifier: Apache-2.0
#include "codec/infer_request.hpp"

#include <protozero/exception.hpp>
#include <protozero/pbf_reader.hpp>

namespace fused_mlp {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;
using protozero::tag_and_type;

constexpr std::string_view kInput = "input", kVariant = "variant", kArm = "arm";
constexpr size_t kShownNames = 4;
constexpr const char* kMessage = "an inference.ModelInferRequest";

std::string_view view(protozero::data_view bytes) { return {bytes.data(), bytes.size()}; }

struct InferFields {
  explicit InferFields(PredictInput& input) : fp32(input.scattered), fp64(input.scattered) {}
  std::string_view version, dtype, name, raw, variant, arm;
  std::string names;
  size_t inputs = 0, outputs = 0, raws = 0;
  bool contents = false, text_ok = true;
  PackedNumbers fp32, fp64;
  uint32_t filled = 0;  // which of the typed contents, by field number
};

void read_contents(pbf_reader contents, InferFields& fields) {
  fields.contents = true;
  while (contents.next()) {
    const auto number = contents.tag();
    const bool packed = contents.wire_type() == pbf_wire_type::length_delimited;
    if (number >= 1 && number <= 8) fields.filled |= 1u << number;
    if (number == 6 && packed) {
      fields.fp32.add(view(contents.get_view()));
    } else if (number == 6 && contents.wire_type() == pbf_wire_type::fixed32) {
      const float value = contents.get_float();
      fields.fp32.add_copy(&value, sizeof value);
    } else if (number == 7 && packed) {
      fields.fp64.add(view(contents.get_view()));
    } else if (number == 7 && contents.wire_type() == pbf_wire_type::fixed64) {
      const double value = contents.get_double();
      fields.fp64.add_copy(&value, sizeof value);
    } else {
      contents.skip();
    }
  }
}

void read_tensor(pbf_reader tensor, PredictInput& input, InferFields& fields) {
  std::string_view name;
  while (tensor.next()) {
    switch (tensor.tag_and_type()) {
      case tag_and_type(1, pbf_wire_type::length_delimited):
        name = view(tensor.get_view());
        break;
      case tag_and_type(2, pbf_wire_type::length_delimited):
        fields.dtype = view(tensor.get_view());
        break;
      case tag_and_type(3, pbf_wire_type::length_delimited):
        for (const int64_t size : tensor.get_packed_int64()) input.add_dimension(size);
        break;
      case tag_and_type(3, pbf_wire_type::varint):
        input.add_dimension(tensor.get_int64());
        break;
      case tag_and_type(5, pbf_wire_type::length_delimited):
        read_contents(tensor.get_message(), fields);
        break;
      default:
        tensor.skip();
    }
  }
  fields.text_ok = fields.text_ok && is_utf8(name) && is_utf8(fields.dtype);
  fields.name = name;
  if (name == kInput && fields.inputs == 0) return void(++fields.inputs);
  if (fields.inputs == 1 && fields.names.empty()) fields.names = quote_name(kInput);
  if (++fields.inputs <= kShownNames) {
    fields.names += (fields.names.empty() ? "" : ", ") + quote_name(name);
  }
}

void read_output(pbf_reader output, PredictInput& input, InferFields& fields) {
  std::string_view name;
  while (output.next()) {
    if (output.tag_and_type() == tag_and_type(1, pbf_wire_type::length_delimited)) {
      name = view(output.get_view());
    } else {
      output.skip();
    }
  }
  fields.text_ok = fields.text_ok && is_utf8(name);
  if (++fields.outputs <= kMostHeads) input.outputs.push_back(name);
}

// One entry of the map of parameters. Of all that clients send here, only the arm means something to us.
void read_parameter(pbf_reader parameter, InferFields& fields) {
  std::string_view name, text;
  while (parameter.next()) {
    if (parameter.tag_and_type() == tag_and_type(1, pbf_wire_type::length_delimited)) {
      name = view(parameter.get_view());
    } else if (parameter.tag_and_type() == tag_and_type(2, pbf_wire_type::length_delimited)) {
      pbf_reader value = parameter.get_message();
      while (value.next()) {
        if (value.tag_and_type() == tag_and_type(3, pbf_wire_type::length_delimited)) {
          text = view(value.get_view());
        } else {
          value.skip();
        }
      }
    } else {
      parameter.skip();
    }
  }
  fields.text_ok = fields.text_ok && is_utf8(name) && is_utf8(text);
  if (name == kVariant) fields.variant = text;
  if (name == kArm) fields.arm = text;
}

std::string take_contents(PredictInput& input, const InferFields& fields) {
  const bool fp32 = input.dtype == DType::fp32, fp64 = input.dtype == DType::fp64;
  const uint32_t allowed = fp32 ? 1u << 6 : fp64 ? 1u << 7 : 0;
  if ((fp32 || fp64) && (fields.filled & ~allowed) == 0) {
    input.data = fp32 ? fields.fp32.bytes() : fields.fp64.bytes();
    input.typed = true;
    return input.data.size() % dtype_size(input.dtype) == 0 ? std::string() : input.unreadable(kMessage);
  }
  constexpr const char* kNames[] = {"",
                                    "bool_contents",
                                    "int_contents",
                                    "int64_contents",
                                    "uint_contents",
                                    "uint64_contents",
                                    "fp32_contents",
                                    "fp64_contents",
                                    "bytes_contents"};
  std::string got;
  for (unsigned i = 1; i < std::size(kNames); ++i) {
    if ((fields.filled >> i & 1) != 0) got += (got.empty() ? "" : ", ") + std::string(kNames[i]);
  }
  return std::string("contents: expected ") +
         (fp32   ? kNames[6]
          : fp64 ? kNames[7]
                 : "raw_input_contents") +
         " for " + std::string(dtype_name(input.dtype)) + ", got " + (got.empty() ? "nothing" : got);
}

std::string read_fields(pbf_reader request, PredictInput& input) {
  InferFields fields(input);
  while (request.next()) {
    switch (request.tag_and_type()) {
      case tag_and_type(1, pbf_wire_type::length_delimited):
        input.model = view(request.get_view());
        break;
      case tag_and_type(2, pbf_wire_type::length_delimited):
        fields.version = view(request.get_view());
        break;
      case tag_and_type(3, pbf_wire_type::length_delimited):
        input.request_id = view(request.get_view());
        break;
      case tag_and_type(4, pbf_wire_type::length_delimited):
        read_parameter(request.get_message(), fields);
        break;
      case tag_and_type(5, pbf_wire_type::length_delimited):
        read_tensor(request.get_message(), input, fields);
        break;
      case tag_and_type(6, pbf_wire_type::length_delimited):
        read_output(request.get_message(), input, fields);
        break;
      case tag_and_type(7, pbf_wire_type::length_delimited):
        fields.raw = view(request.get_view());
        ++fields.raws;
        break;
      default:
        request.skip();
    }
  }
  if (!fields.text_ok || !is_utf8(input.request_id) || !is_utf8(input.model) || !is_utf8(fields.version)) {
    return input.unreadable(kMessage);
  }
  if (!fields.version.empty() && !parse_version(fields.version, input.arm.version)) {
    return "model_version: expected a whole number from 1 or nothing, got " + quote_name(fields.version);
  }
  input.arm.variant = variant_of(fields.variant);
  if (!fields.variant.empty() && input.arm.variant == Variant::unspecified) {
    return "parameters: expected variant fused or unfused, got " + quote_name(fields.variant);
  }
  if (std::string problem = input.name_arm("parameters: arm", fields.arm); !problem.empty()) return problem;
  if (fields.inputs != 1 || fields.name != kInput) {
    return "inputs: expected one tensor named 'input', got " + (fields.names.empty() ? "none" : fields.names);
  }
  if (fields.outputs > kMostHeads) {
    return "outputs: expected at most " + std::to_string(kMostHeads) + ", got " +
           std::to_string(fields.outputs);
  }
  input.all_outputs = fields.outputs == 0;
  input.outputs_field = "outputs";
  const auto dtype = dtype_from_name(fields.dtype);
  if (!dtype) return unknown_dtype_text(fields.dtype);
  input.dtype = *dtype;
  if (fields.contents && fields.raws != 0) return "input: expected contents or raw_input_contents, got both";
  if (fields.contents) return take_contents(input, fields);
  if (fields.raws != 1)
    return "raw_input_contents: expected 1 for 1 input, got " + std::to_string(fields.raws);
  input.data = fields.raw;
  return {};
}

}  // namespace

std::string read_infer_request(const uint8_t* data, size_t size, PredictInput& input) {
  try {
    return read_fields(pbf_reader(reinterpret_cast<const char*>(data), size), input);
  } catch (const protozero::exception&) {
    return input.unreadable(kMessage);
  }
}

}  // namespace fused_mlp
