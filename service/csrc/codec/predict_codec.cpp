// SPDX-License-Identifier: Apache-2.0
// fused_mlp.v1, by the field numbers of protos/fused_mlp.proto.
#include <protozero/exception.hpp>
#include <protozero/pbf_reader.hpp>

#include "codec/codec.hpp"
#include "codec/wire.hpp"

namespace fused_mlp {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;
using protozero::tag_and_type;

constexpr const char* kMessage = "a fused_mlp.v1.PredictRequest";
constexpr std::string_view kAll = "*";  // no head has that name

std::string_view view(protozero::data_view bytes) { return {bytes.data(), bytes.size()}; }

struct TensorFields {
  explicit TensorFields(PredictInput& input) : values(input.scattered) {}
  int64_t dtype = 0;
  PackedNumbers values;
};

void read_tensor(pbf_reader tensor, PredictInput& input, TensorFields& fields) {
  while (tensor.next()) {
    switch (tensor.tag_and_type()) {
      case tag_and_type(1, pbf_wire_type::length_delimited):
        for (const int64_t size : tensor.get_packed_int64()) input.add_dimension(size);
        break;
      case tag_and_type(1, pbf_wire_type::varint):
        input.add_dimension(tensor.get_int64());
        break;
      case tag_and_type(2, pbf_wire_type::varint):
        fields.dtype = tensor.get_enum();
        break;
      case tag_and_type(3, pbf_wire_type::length_delimited):
        input.data = view(tensor.get_view());
        break;
      case tag_and_type(4, pbf_wire_type::length_delimited):
        fields.values.add(view(tensor.get_view()));
        break;
      case tag_and_type(4, pbf_wire_type::fixed32): {
        const float value = tensor.get_float();
        fields.values.add_copy(&value, sizeof value);
        break;
      }
      default:
        tensor.skip();
    }
  }
}

std::string read_request(pbf_reader request, PredictInput& input) {
  TensorFields fields(input);
  int64_t variant = 0;
  std::string_view output, arm;
  while (request.next()) {
    switch (request.tag_and_type()) {
      case tag_and_type(1, pbf_wire_type::length_delimited):
        input.model = view(request.get_view());
        break;
      case tag_and_type(2, pbf_wire_type::varint):
        input.arm.version = request.get_int64();
        break;
      case tag_and_type(3, pbf_wire_type::length_delimited):
        read_tensor(request.get_message(), input, fields);
        break;
      case tag_and_type(4, pbf_wire_type::varint):
        variant = request.get_enum();
        break;
      case tag_and_type(5, pbf_wire_type::length_delimited):
        input.request_id = view(request.get_view());
        break;
      case tag_and_type(6, pbf_wire_type::length_delimited):
        output = view(request.get_view());
        break;
      case tag_and_type(7, pbf_wire_type::length_delimited):
        arm = view(request.get_view());
        break;
      default:
        request.skip();
    }
  }
  if (!is_utf8(input.request_id) || !is_utf8(input.model) || !is_utf8(output) || !is_utf8(arm)) {
    return input.unreadable(kMessage);
  }
  input.all_outputs = output == kAll;
  if (!output.empty() && !input.all_outputs) input.outputs.push_back(output);
  if (variant < 0 || variant > 2) {
    return "variant: expected FUSED (1) or UNFUSED (2), got " + std::to_string(variant);
  }
  input.arm.variant = static_cast<Variant>(variant);
  if (input.arm.version < 0) {
    return "version: expected a number from 1, or 0 for the default, got " +
           std::to_string(input.arm.version);
  }
  if (std::string problem = input.name_arm("arm", arm); !problem.empty()) return problem;
  const std::string_view values = fields.values.bytes();
  if (!input.data.empty() && !values.empty()) return "input: expected data or values, got both";
  const auto dtype = dtype_from_proto(fields.dtype);
  if (!dtype) return unknown_dtype_text(std::to_string(fields.dtype));
  input.dtype = *dtype;
  if (values.empty()) return {};
  if (input.dtype != DType::fp32) {
    return "input: values are FP32, got dtype " + std::string(dtype_name(input.dtype)) +
           "; send data instead";
  }
  if (values.size() % sizeof(float) != 0) return input.unreadable(kMessage);
  input.typed = true;
  input.data = values;
  return {};
}

// One head of an answer. The first is in fields of the response, the others are messages of their own.
struct HeadSizes {
  HeadSizes(const PredictInput& input, const RouteEntry& entry, const Head& head, const Outcome& outcome)
      : name(entry.shown_name(head)) {
    shape = AnswerShape(input, outcome.rows).size(head);
    data = size_t{outcome.rows} * head.width * dtype_size(input.dtype);
    tensor = bytes_field_size(shape) + number_field_size(dtype_number(input)) + bytes_field_size(data);
  }
  // As a fused_mlp.v1.HeadOutput.
  size_t message(const Head& head) const {
    return text_field_size(name) + bytes_field_size(tensor) + number_field_size(head.squeeze);
  }
  static uint64_t dtype_number(const PredictInput& input) { return static_cast<uint64_t>(input.dtype) + 1; }
  std::string_view name;
  size_t shape, data, tensor;
};

void write_tensor(Writer& w, const HeadSizes& sizes, const PredictInput& input, const RouteEntry& entry,
                  const Head& head, const Outcome& outcome, const Results& results) {
  w.begin(1, sizes.shape);
  AnswerShape(input, outcome.rows).write(head, w);
  w.number(2, HeadSizes::dtype_number(input));
  w.begin(input.typed ? 4 : 3, sizes.data);
  write_head(results, outcome.rows, entry, head, input.dtype, w.skip(sizes.data));
}

class PredictCodec final : public Codec {
 public:
  std::string decode(const uint8_t* data, size_t size, PredictInput& input) const override {
    try {
      return read_request(pbf_reader(reinterpret_cast<const char*>(data), size), input);
    } catch (const protozero::exception&) {
      return input.unreadable(kMessage);
    }
  }

  size_t encode(const PredictInput& input, const RouteEntry& entry, Variant variant, const Outcome& outcome,
                const Results& results, ByteBuffer& out) const override {
    const Head& head = entry.heads[input.heads[0]];
    const HeadSizes first(input, entry, head, outcome);
    const std::string_view strategy = outcome.strategy;
    const auto queue_ns = static_cast<uint64_t>(outcome.queue_ns);
    const auto compute_ns = static_cast<uint64_t>(outcome.compute_ns);
    const size_t timings_size =
        number_field_size(queue_ns) + number_field_size(compute_ns) + number_field_size(outcome.batch_rows);
    size_t size = bytes_field_size(first.tensor) + text_field_size(entry.model) +
                  number_field_size(static_cast<uint64_t>(entry.version)) +
                  number_field_size(static_cast<uint64_t>(variant)) + text_field_size(strategy) +
                  bytes_field_size(timings_size) + text_field_size(input.request_id) +
                  text_field_size(first.name) + number_field_size(head.squeeze);
    for (size_t i = 1; i < input.head_count; ++i) {
      const Head& other = entry.heads[input.heads[i]];
      size += bytes_field_size(HeadSizes(input, entry, other, outcome).message(other));
    }
    Writer w(out.extend(size));
    w.begin(1, first.tensor);
    write_tensor(w, first, input, entry, head, outcome, results);
    w.text(2, entry.model);
    w.number(3, static_cast<uint64_t>(entry.version));
    w.number(4, static_cast<uint64_t>(variant));
    w.text(5, strategy);
    w.begin(6, timings_size);
    w.number(1, queue_ns);
    w.number(2, compute_ns);
    w.number(3, outcome.batch_rows);
    w.text(7, input.request_id);
    w.text(9, first.name);
    w.number(10, head.squeeze);
    for (size_t i = 1; i < input.head_count; ++i) {
      const Head& other = entry.heads[input.heads[i]];
      const HeadSizes sizes(input, entry, other, outcome);
      w.begin(11, sizes.message(other));
      w.text(1, sizes.name);
      w.begin(2, sizes.tensor);
      write_tensor(w, sizes, input, entry, other, outcome, results);
      w.number(3, other.squeeze);
    }
    return 0;
  }

  void encode_error(std::string_view request_id, int code, std::string_view text,
                    ByteBuffer& out) const override {
    const auto number = static_cast<uint64_t>(code);
    const size_t error_size = number_field_size(number) + text_field_size(text);
    Writer w(out.extend(text_field_size(request_id) + bytes_field_size(error_size)));
    w.text(7, request_id);
    w.begin(8, error_size);
    w.number(1, number);
    w.text(2, text);
  }
};

}  // namespace

const Codec& predict_codec() {
  static const PredictCodec codec;
  return codec;
}

}  // namespace fused_mlp
