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
  while (request.next()) {
    switch (request.tag_and_type()) {
      case tag_and_type(1, pbf_wire_type::length_delimited):
        input.model = view(request.get_view());
        break;
      case tag_and_type(2, pbf_wire_type::varint):
        input.version = request.get_int64();
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
      default:
        request.skip();
    }
  }
  if (!is_utf8(input.request_id) || !is_utf8(input.model)) return input.unreadable(kMessage);
  if (variant < 0 || variant > 2) {
    return "variant: expected FUSED (1) or UNFUSED (2), got " + std::to_string(variant);
  }
  input.variant = static_cast<Variant>(variant);
  if (input.version < 0) {
    return "version: expected a number from 1, or 0 for the default, got " + std::to_string(input.version);
  }
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

class PredictCodec final : public Codec {
 public:
  std::string decode(const uint8_t* data, size_t size, PredictInput& input) const override {
    try {
      return read_request(pbf_reader(reinterpret_cast<const char*>(data), size), input);
    } catch (const protozero::exception&) {
      return input.unreadable(kMessage);
    }
  }

  uint8_t* encode(const PredictInput& input, const RouteEntry& entry, Variant variant, const Outcome& outcome,
                  ByteBuffer& out) const override {
    const size_t bytes = size_t{outcome.rows} * entry.out_features * dtype_size(input.dtype);
    const std::string_view strategy = outcome.strategy;
    const auto dtype = static_cast<uint64_t>(input.dtype) + 1;
    const auto queue_ns = static_cast<uint64_t>(outcome.queue_ns);
    const auto compute_ns = static_cast<uint64_t>(outcome.compute_ns);
    const size_t shape_size = varint_size(outcome.rows) + varint_size(entry.out_features);
    const size_t tensor_size =
        bytes_field_size(shape_size) + number_field_size(dtype) + bytes_field_size(bytes);
    const size_t timings_size =
        number_field_size(queue_ns) + number_field_size(compute_ns) + number_field_size(outcome.batch_rows);
    const size_t size = bytes_field_size(tensor_size) + text_field_size(entry.model) +
                        number_field_size(static_cast<uint64_t>(entry.version)) +
                        number_field_size(static_cast<uint64_t>(variant)) + text_field_size(strategy) +
                        bytes_field_size(timings_size) + text_field_size(input.request_id);
    Writer w(out.extend(size));
    w.begin(1, tensor_size);
    w.begin(1, shape_size);
    w.varint(outcome.rows);
    w.varint(entry.out_features);
    w.number(2, dtype);
    w.begin(input.typed ? 4 : 3, bytes);
    uint8_t* elements = w.skip(bytes);
    w.text(2, entry.model);
    w.number(3, static_cast<uint64_t>(entry.version));
    w.number(4, static_cast<uint64_t>(variant));
    w.text(5, strategy);
    w.begin(6, timings_size);
    w.number(1, queue_ns);
    w.number(2, compute_ns);
    w.number(3, outcome.batch_rows);
    w.text(7, input.request_id);
    return elements;
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
