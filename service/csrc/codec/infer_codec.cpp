// SPDX-License-Identifier: Apache-2.0
// The Open Inference Protocol: reads inference.ModelInferRequest and writes its answers, by the field numbers
// of protos/open_inference.proto.
#include <protozero/exception.hpp>
#include <protozero/pbf_reader.hpp>

#include "codec/codec.hpp"
#include "codec/results.hpp"
#include "codec/wire.hpp"

namespace fused_mlp {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;
using protozero::tag_and_type;

constexpr std::string_view kVariant = "variant", kArm = "arm", kInt64 = "INT64";
constexpr uint8_t kHasContents = 255;  // until the field is known that holds them
constexpr const char* kMessage = "an inference.ModelInferRequest";

std::string too_many_inputs(PredictInput& input) {
  input.request_id = {};  // may not be UTF-8
  return "inputs: expected at most " + std::to_string(kMaxInputs) + ", got more";
}

std::string_view view(protozero::data_view bytes) { return {bytes.data(), bytes.size()}; }

struct InferFields {
  std::string_view version, variant, arm;
  size_t outputs = 0, raws = 0;
  std::vector<std::string_view> more_raws;  // after the first
  std::string_view raw;
  bool contents = false, text_ok = true;
};

// The typed contents of the one tensor `input`.
struct Contents {
  explicit Contents(PredictInput& input) : fp32(input.scattered), fp64(input.scattered) {}
  PackedNumbers fp32, fp64;
  uint32_t filled = 0;  // which of them, by field number
};

Contents read_contents(std::string_view bytes, PredictInput& input) {
  Contents fields(input);
  pbf_reader contents(bytes.data(), bytes.size());
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
  return fields;
}

// The field of the typed contents that holds elements of this kind; 0: none does.
uint8_t contents_field(Element element) {
  // In the order of Element: the floats, the signed and the unsigned numbers, BOOL, BYTES, unknown.
  constexpr uint8_t kFields[] = {6, 0, 0, 7, 2, 2, 2, 3, 4, 4, 4, 5, 1, 8, 0};
  static_assert(std::size(kFields) == static_cast<size_t>(Element::unknown) + 1);
  return kFields[static_cast<size_t>(element)];
}

void read_tensor(pbf_reader message, PredictInput& input, InferFields& fields) {
  WireTensor& tensor = input.tensors.emplace_back();
  while (message.next()) {
    switch (message.tag_and_type()) {
      case tag_and_type(1, pbf_wire_type::length_delimited):
        tensor.name = view(message.get_view());
        break;
      case tag_and_type(2, pbf_wire_type::length_delimited):
        tensor.datatype = view(message.get_view());
        break;
      case tag_and_type(3, pbf_wire_type::length_delimited):
        for (const int64_t size : message.get_packed_int64()) tensor.add_dimension(size);
        break;
      case tag_and_type(3, pbf_wire_type::varint):
        tensor.add_dimension(message.get_int64());
        break;
      case tag_and_type(5, pbf_wire_type::length_delimited):
        tensor.data = view(message.get_view());
        tensor.typed_field = kHasContents;
        fields.contents = true;
        break;
      default:
        message.skip();
    }
  }
  tensor.element = element_from_name(tensor.datatype);
  fields.text_ok = fields.text_ok && is_utf8(tensor.name) && is_utf8(tensor.datatype);
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
  if (++fields.outputs <= kMaxHeads) input.outputs.push_back(name);
}

// A value of the map of parameters.
struct Parameter {
  std::string_view text;
  double number = 0;  // of all kinds but text
  bool is_text = false, whole = false, flag = false;
};

Parameter read_value(pbf_reader value) {
  Parameter read;
  while (value.next()) {
    switch (value.tag_and_type()) {
      case tag_and_type(1, pbf_wire_type::varint):
        read = {{}, value.get_bool() ? 1.0 : 0.0, false, false, true};
        break;
      case tag_and_type(2, pbf_wire_type::varint):
        read = {{}, static_cast<double>(value.get_int64()), false, true};
        break;
      case tag_and_type(3, pbf_wire_type::length_delimited):
        read = {view(value.get_view()), 0, true};
        break;
      case tag_and_type(4, pbf_wire_type::fixed64):
        read = {{}, value.get_double()};
        break;
      case tag_and_type(5, pbf_wire_type::varint):
        read = {{}, static_cast<double>(value.get_uint64()), false, true};
        break;
      default:
        value.skip();
    }
  }
  return read;
}

// Those of candidates. What is wrong; empty: nothing.
std::string take_parameter(std::string_view name, const Parameter& value, PredictInput& input) {
  Ranking& ranking = input.ranking;
  if (name == "shared") {
    if (!value.is_text && !value.flag) return "parameters: expected names of inputs or true for shared";
    input.shared.every_single = value.number != 0;
    return value.is_text ? input.share(value.text) : std::string();
  }
  if (name == "top_k") {
    if (!value.whole) return "parameters: expected a whole number for top_k";
    ranking.limited = true;
    ranking.top_k = static_cast<int64_t>(std::clamp(value.number, -1.0, 0x1p53));
  }
  if (name == "min_score") {
    if (value.is_text) return ranking.read_min_score(value.text);
    if (value.flag) return "parameters: expected a number for min_score";
    ranking.bounded = true;
    ranking.min_score = value.number;
  }
  if (name == "output") ranking.output = value.text;
  if (name == "ids") ranking.ids = value.text;
  return {};
}

// One entry of the map of parameters. Those that mean nothing to us are passed over.
std::string read_parameter(pbf_reader parameter, PredictInput& input, InferFields& fields) {
  std::string_view name;
  Parameter value;
  while (parameter.next()) {
    if (parameter.tag_and_type() == tag_and_type(1, pbf_wire_type::length_delimited)) {
      name = view(parameter.get_view());
    } else if (parameter.tag_and_type() == tag_and_type(2, pbf_wire_type::length_delimited)) {
      value = read_value(parameter.get_message());
    } else {
      parameter.skip();
    }
  }
  fields.text_ok = fields.text_ok && is_utf8(name) && is_utf8(value.text);
  if (name == kVariant) fields.variant = value.text;
  if (name == kArm) fields.arm = value.text;
  return fields.text_ok ? take_parameter(name, value, input) : std::string();
}

std::string take_contents(PredictInput& input, const Contents& fields) {
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

// The one tensor of a model without named inputs.
std::string take_only_input(PredictInput& input, const InferFields& fields) {
  const WireTensor& tensor = input.tensors[0];
  input.dtype = static_cast<DType>(tensor.element);
  for (const int64_t size : tensor.shape()) input.add_dimension(size);
  const std::string_view contents = tensor.data;
  input.tensors.clear();
  if (fields.contents) return take_contents(input, read_contents(contents, input));
  input.data = fields.raw;
  return {};
}

std::string take_inputs(PredictInput& input, const InferFields& fields) {
  std::vector<WireTensor>& tensors = input.tensors;
  if (tensors.empty()) return "inputs: expected tensors by name, got none";
  if (fields.contents && fields.raws != 0) return "input: expected contents or raw_input_contents, got both";
  if (!fields.contents && fields.raws != tensors.size()) {
    const std::string count = std::to_string(tensors.size());
    return "raw_input_contents: expected " + count + " for " + count +
           (tensors.size() == 1 ? " input" : " inputs") + ", got " + std::to_string(fields.raws);
  }
  if (tensors.size() == 1 && tensors[0].name == kOnlyInput && is_float(tensors[0].element)) {
    return take_only_input(input, fields);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    WireTensor& tensor = tensors[i];
    if (fields.contents) {
      tensor.typed_field = contents_field(tensor.element);
      if (tensor.typed_field == 0 && tensor.element != Element::unknown) {
        return "input " + quote_name(tensor.name) + ": expected raw_input_contents for " +
               std::string(tensor.datatype) + ", got contents";
      }
    } else {
      tensor.data = i == 0 ? fields.raw : fields.more_raws[i - 1];
    }
  }
  return {};
}

std::string read_fields(pbf_reader request, PredictInput& input) {
  InferFields fields;
  std::string problem;
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
        if (std::string text = read_parameter(request.get_message(), input, fields); problem.empty())
          problem = std::move(text);
        break;
      case tag_and_type(5, pbf_wire_type::length_delimited):
        if (input.tensors.size() == kMaxInputs) return too_many_inputs(input);
        read_tensor(request.get_message(), input, fields);
        break;
      case tag_and_type(6, pbf_wire_type::length_delimited):
        read_output(request.get_message(), input, fields);
        break;
      case tag_and_type(7, pbf_wire_type::length_delimited):
        if (fields.raws == kMaxInputs) return too_many_inputs(input);
        (fields.raws++ == 0 ? fields.raw : fields.more_raws.emplace_back()) = view(request.get_view());
        break;
      default:
        request.skip();
    }
  }
  if (!fields.text_ok || !is_utf8(input.request_id) || !is_utf8(input.model) || !is_utf8(fields.version)) {
    return input.unreadable(kMessage);
  }
  if (!problem.empty()) return problem;
  if (!fields.version.empty() && !parse_version(fields.version, input.arm.version)) {
    return "model_version: expected a whole number from 1 or nothing, got " + quote_name(fields.version);
  }
  input.arm.variant = variant_of(fields.variant);
  if (!fields.variant.empty() && input.arm.variant == Variant::unspecified) {
    return "parameters: expected variant fused or unfused, got " + quote_name(fields.variant);
  }
  if (std::string problem = input.name_arm("parameters: arm", fields.arm); !problem.empty()) return problem;
  if (fields.outputs > kMaxHeads) {
    return "outputs: expected at most " + std::to_string(kMaxHeads) + ", got " +
           std::to_string(fields.outputs);
  }
  input.all_outputs = fields.outputs == 0;
  input.outputs_field = "outputs";
  return take_inputs(input, fields);
}

template <class Shaped>
void add_tensor(Writer& writer, ByteBuffer& out, const Answer& answer, const Shaped& shaped,
                std::string_view datatype) {
  Writer tensor(writer, 5);
  tensor.add_bytes(1, shaped.name.data(), shaped.name.size());
  tensor.add_bytes(2, datatype.data(), datatype.size());
  answer.add_shape(tensor, out, 3, shaped);
}

void add_response(Writer& w, ByteBuffer& out, const PredictInput& input, const RouteEntry& entry,
                  Variant variant, const Answer& answer) {
  add_text(w, 1, entry.model);
  add_text(w, 2, std::to_string(entry.version));
  add_text(w, 3, input.request_id);
  {
    Writer parameter(w, 4);
    add_text(parameter, 1, kVariant);
    Writer value(parameter, 2);
    add_text(value, 3, variant_name(variant));
  }
  for (size_t i = 0; i < input.head_count; ++i) {
    add_tensor(w, out, answer, entry.heads[input.heads[i]], dtype_name(input.dtype));
  }
  for (const Answer::Numbers& numbers : answer.numbers()) add_tensor(w, out, answer, numbers, kInt64);
  for (size_t i = 0; i < input.head_count; ++i) {
    const Head& head = entry.heads[input.heads[i]];
    const size_t size = answer.values(head) * dtype_size(input.dtype);
    begin_field(out, 6, size);
    answer.write(head, out.extend(size));
  }
  for (const Answer::Numbers& numbers : answer.numbers()) {
    w.add_bytes(6, reinterpret_cast<const char*>(numbers.values.data()), numbers.values.size_bytes());
  }
}

class InferCodec final : public Codec {
 public:
  explicit InferCodec(bool streaming) : streaming_(streaming) {}

  std::string decode(const uint8_t* data, size_t size, PredictInput& input) const override {
    try {
      return read_fields(pbf_reader(reinterpret_cast<const char*>(data), size), input);
    } catch (const protozero::exception&) {
      return input.unreadable(kMessage);
    }
  }

  size_t encode(const PredictInput& input, const RouteEntry& entry, Variant variant, const Outcome& outcome,
                const Results& results, ByteBuffer& out) const override {
    const Answer answer(input, entry, outcome.rows, results);
    out.reserve(out.size() + answer.max_bytes() + entry.model.size() + input.request_id.size());
    Writer w(out);
    if (!streaming_) return add_response(w, out, input, entry, variant, answer), 0;
    Writer response(w, 2);
    add_response(response, out, input, entry, variant, answer);
    return 0;
  }

  // This message has no field for a code. The id tells the caller which request failed.
  void encode_error(std::string_view request_id, int, std::string_view text, ByteBuffer& out) const override {
    Writer w(out);
    add_text(w, 1, text);
    if (request_id.empty()) return w.add_bytes(2, "", 0);  // an empty response
    Writer response(w, 2);
    add_text(response, 3, request_id);
  }

 private:
  const bool streaming_;
};

}  // namespace

const Codec& infer_codec() {
  static const InferCodec codec(false);
  return codec;
}

const Codec& infer_stream_codec() {
  static const InferCodec codec(true);
  return codec;
}

}  // namespace fused_mlp
