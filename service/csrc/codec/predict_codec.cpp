// SPDX-License-Identifier: Apache-2.0
// fused_mlp.v1, by the field numbers of protos/fused_mlp.proto.
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

// By the fields of Tensor: typed elements stay where they are until they are packed.
void read_named_tensor(pbf_reader message, WireTensor& tensor) {
  const protozero::data_view all = message.data();
  int64_t dtype = 0;
  bool raw = false;
  while (message.next()) {
    switch (message.tag_and_type()) {
      case tag_and_type(1, pbf_wire_type::length_delimited):
        for (const int64_t size : message.get_packed_int64()) tensor.add_dimension(size);
        break;
      case tag_and_type(1, pbf_wire_type::varint):
        tensor.add_dimension(message.get_int64());
        break;
      case tag_and_type(2, pbf_wire_type::varint):
        dtype = message.get_enum();
        break;
      case tag_and_type(3, pbf_wire_type::length_delimited):
        tensor.data = view(message.get_view());
        raw = !tensor.data.empty();
        break;
      default:
        if (message.tag() >= 4 && message.tag() <= 6)
          tensor.typed_field = static_cast<uint8_t>(message.tag());
        message.skip();
    }
  }
  tensor.element = element_from_proto(dtype);
  if (tensor.typed_field == 0) return;
  const Element typed[] = {Element::fp32, Element::int64, Element::bytes};
  const Element element = typed[tensor.typed_field - 4];
  // Both of them, or another dtype than they have: no element fits.
  if (raw || (dtype != 0 && tensor.element != element)) return void(tensor.element = Element::unknown);
  tensor.element = element;
  tensor.data = view(all);
}

void read_named(pbf_reader named, PredictInput& input) {
  WireTensor& tensor = input.tensors.emplace_back();
  while (named.next()) {
    switch (named.tag_and_type()) {
      case tag_and_type(1, pbf_wire_type::length_delimited):
        tensor.name = view(named.get_view());
        break;
      case tag_and_type(2, pbf_wire_type::length_delimited):
        read_named_tensor(named.get_message(), tensor);
        break;
      default:
        named.skip();
    }
  }
}

// Checks inputs that came by name. Returns the problem; empty: none.
std::string check_named(PredictInput& input, bool unnamed) {
  for (const WireTensor& tensor : input.tensors) {
    if (!is_utf8(tensor.name)) return input.unreadable(kMessage);
  }
  for (const WireTensor& tensor : input.tensors) {
    if (tensor.element == Element::unknown) {
      return "input " + quote_name(tensor.name) +
             ": expected a dtype with data, or values (FP32), integers (INT64) or strings (BYTES) alone";
    }
  }
  return unnamed ? "inputs: expected input or inputs, got both" : std::string();
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
      case tag_and_type(8, pbf_wire_type::length_delimited):
        if (input.tensors.size() == kMaxInputs) {
          input.request_id = {};  // may not be UTF-8
          return "inputs: expected at most " + std::to_string(kMaxInputs) + ", got more";
        }
        read_named(request.get_message(), input);
        break;
      case tag_and_type(9, pbf_wire_type::length_delimited):
        if (input.shared.names.size() == kMaxInputs) {
          input.request_id = {};
          return "shared: expected at most " + std::to_string(kMaxInputs) + " names, got more";
        }
        input.shared.names.push_back(view(request.get_view()));
        break;
      case tag_and_type(10, pbf_wire_type::varint):
        input.ranking.limited = true;
        input.ranking.top_k = request.get_uint32();
        break;
      case tag_and_type(11, pbf_wire_type::fixed64):
        input.ranking.bounded = true;
        input.ranking.min_score = request.get_double();
        break;
      case tag_and_type(12, pbf_wire_type::length_delimited):
        input.ranking.ids = view(request.get_view());
        break;
      default:
        request.skip();
    }
  }
  const bool shared_ok = std::all_of(input.shared.names.begin(), input.shared.names.end(), is_utf8);
  if (!is_utf8(input.request_id) || !is_utf8(input.model) || !is_utf8(output) || !is_utf8(arm) ||
      !shared_ok || !is_utf8(input.ranking.ids)) {
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
  if (!input.tensors.empty()) {
    return check_named(input, !input.data.empty() || !values.empty() || input.dimension_count != 0);
  }
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

// A fused_mlp.v1.Tensor. Its size is known before its values, which are many, are written.
void add_tensor(ByteBuffer& out, unsigned field, const PredictInput& input, const Head& head,
                const Answer& answer) {
  size_t shape = 0;
  answer.each_dimension(head, [&](uint64_t size) { shape += protozero::length_of_varint(size); });
  const size_t data = answer.values(head) * dtype_size(input.dtype);
  constexpr size_t kDTypeBytes = 2;
  begin_field(out, field, field_size(shape) + kDTypeBytes + field_size(data));
  begin_field(out, 1, shape);
  answer.each_dimension(head, [&](uint64_t size) { protozero::add_varint_to_buffer(&out, size); });
  Writer(out).add_enum(2, static_cast<int32_t>(input.dtype) + 1);
  begin_field(out, input.typed ? 4 : 3, data);
  answer.write(head, out.extend(data));
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
    const Answer answer(input, entry, outcome.rows, results);
    const std::string_view strategy = outcome.strategy;
    out.reserve(out.size() + answer.max_bytes() + entry.model.size() + strategy.size() +
                input.request_id.size());
    Writer w(out);
    add_tensor(out, 1, input, head, answer);
    add_text(w, 2, entry.model);
    add_number(w, 3, static_cast<uint64_t>(entry.version));
    add_number(w, 4, static_cast<uint64_t>(variant));
    add_text(w, 5, strategy);
    const uint64_t timings[] = {static_cast<uint64_t>(outcome.queue_ns),
                                static_cast<uint64_t>(outcome.compute_ns), outcome.batch_rows};
    size_t timings_size = 0;  // known before it is written: protozero would move the fields behind it
    for (const uint64_t each : timings) timings_size += number_size(each);
    begin_field(out, 6, timings_size);
    for (unsigned i = 0; i < std::size(timings); ++i) add_number(w, i + 1, timings[i]);
    add_text(w, 7, input.request_id);
    add_text(w, 9, entry.shown_name(head));
    add_number(w, 10, head.squeeze);
    for (size_t i = 1; i < input.head_count; ++i) {
      const Head& other = entry.heads[input.heads[i]];
      Writer output(w, 11);
      add_text(output, 1, entry.shown_name(other));
      add_tensor(out, 2, input, other, answer);
      add_number(output, 3, other.squeeze);
    }
    for (unsigned i = 0; i < answer.numbers().size(); ++i) {  // positions, then ids
      const std::span<const int64_t> values = answer.numbers()[i].values;
      w.add_packed_int64(12 + i, values.begin(), values.end());
    }
    return 0;
  }

  void encode_error(std::string_view request_id, int code, std::string_view text,
                    ByteBuffer& out) const override {
    Writer w(out);
    add_text(w, 7, request_id);
    Writer error(w, 8);
    add_number(error, 1, static_cast<uint64_t>(code));
    add_text(error, 2, text);
  }
};

}  // namespace

const Codec& predict_codec() {
  static const PredictCodec codec;
  return codec;
}

}  // namespace fused_mlp
