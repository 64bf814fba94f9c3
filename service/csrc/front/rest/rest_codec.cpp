// SPDX-License-Identifier: Apache-2.0
// Writes the answers; rest_request.cpp reads the requests.
#include "front/rest/rest_codec.hpp"

#include <charconv>

#include "codec/results.hpp"
#include "front/rest/json_text.hpp"

namespace fused_mlp::front {
namespace {

void append_number(ByteBuffer& out, uint64_t number) {
  char text[24];
  const auto end = std::to_chars(text, text + sizeof text, number).ptr;
  out.append(text, static_cast<size_t>(end - text));
}

void append_text(ByteBuffer& out, std::string_view name, std::string_view value) {
  append(out, name);
  write_json_text(value, out);
}

bool wants_bytes(const PredictInput& input, const Head& head) {
  for (size_t i = 0; i < input.outputs.size(); ++i) {
    if (input.outputs[i] == head.name) return (input.binary_outputs >> i & 1) != 0;
  }
  return input.binary_output;
}

// As floats, or doubles, of which the narrow types are subsets.
void append_numbers(ByteBuffer& out, const Answer& answer, const Head& head, DType dtype) {
  ByteBuffer bytes;
  const size_t count = answer.values(head);
  answer.write(head, bytes.extend(count * dtype_size(dtype)));
  if (dtype == DType::fp32) {
    return write_json_numbers(reinterpret_cast<const float*>(bytes.data()), count, out);
  }
  if (dtype == DType::fp64) {
    return write_json_numbers(reinterpret_cast<const double*>(bytes.data()), count, out);
  }
  ByteBuffer wide;
  auto* values = reinterpret_cast<float*>(wide.extend(count * sizeof(float)));
  to_float32(dtype, bytes.data(), count, values);
  write_json_numbers(values, count, out);
}

// Up to its data.
template <class Shaped>
void append_shape(ByteBuffer& out, const Answer& answer, const Shaped& shaped, std::string_view datatype) {
  append_text(out, "{\"name\":", shaped.name);
  append(out, ",\"datatype\":\"");
  append(out, datatype);
  append(out, "\",\"shape\":");
  const char* separator = "[";
  answer.each_dimension(shaped, [&](uint64_t size) {
    append(out, separator);
    append_number(out, size);
    separator = ",";
  });
}

void append_binary_size(ByteBuffer& out, size_t size) {
  append(out, "],\"parameters\":{\"binary_data_size\":");
  append_number(out, size);
  append(out, "}}");
}

void append_output(ByteBuffer& out, const PredictInput& input, const Head& head, const Answer& answer) {
  append_shape(out, answer, head, dtype_name(input.dtype));
  if (wants_bytes(input, head)) {
    append_binary_size(out, answer.values(head) * dtype_size(input.dtype));
  } else {
    append(out, "],\"data\":[");
    append_numbers(out, answer, head, input.dtype);
    append(out, "]}");
  }
}

void append_output(ByteBuffer& out, const PredictInput& input, const Answer::Numbers& numbers,
                   const Answer& answer) {
  append_shape(out, answer, numbers, "INT64");
  if (input.binary_output) return append_binary_size(out, numbers.values.size_bytes());
  append(out, "],\"data\":[");
  for (size_t i = 0; i < numbers.values.size(); ++i) {
    if (i != 0) append(out, ",");
    if (numbers.values[i] < 0) append(out, "-");
    const auto value = static_cast<uint64_t>(numbers.values[i]);
    append_number(out, numbers.values[i] < 0 ? 0 - value : value);
  }
  append(out, "]}");
}

constexpr size_t kQuickJsonBytes = 16u << 10;  // some 50 us, or with numbers that are made to be slow 500
constexpr size_t kQuickNumbers = 1u << 10;     // some 50 us to write
constexpr size_t kDecodingFactor = 10;         // a copy, simdjson's index and strings, and the numbers

class RestCodec final : public Codec {
 public:
  bool framed() const override { return false; }
  size_t decoding_bytes(size_t message_size, const PredictInput& input) const override {
    const size_t json_bytes = std::min(message_size, input.head_bytes);
    return json_bytes > kQuickJsonBytes ? kDecodingFactor * json_bytes : 0;
  }

  bool encodes_slowly(const PredictInput& input, const RouteEntry& entry, uint32_t rows) const override {
    size_t numbers = 0;
    for (size_t i = 0; i < input.head_count; ++i) {
      const Head& head = entry.heads[input.heads[i]];
      if (!wants_bytes(input, head)) numbers += input.most_rows(entry, rows) * input.most_columns(head);
    }
    return numbers > kQuickNumbers;
  }
  // -1.17549435e-38 or -2.2250738585072014e-308 and a comma, and the float that it is made from.
  size_t max_bytes_of_number(DType dtype) const override {
    return (dtype == DType::fp64 ? 25 : 16) + sizeof(float);
  }

  std::string decode(const uint8_t* data, size_t size, PredictInput& input) const override {
    return read_rest_request(data, size, input);
  }

  size_t encode(const PredictInput& input, const RouteEntry& entry, Variant variant, const Outcome& outcome,
                const Results& results, ByteBuffer& out) const override {
    append_text(out, "{\"model_name\":", entry.model);
    append(out, ",\"model_version\":\"");
    append_number(out, static_cast<uint64_t>(entry.version));
    append(out, "\"");
    if (!input.request_id.empty()) append_text(out, ",\"id\":", input.request_id);
    append(out, ",\"parameters\":{\"variant\":\"");
    append(out, variant_name(variant));
    append(out, "\"},\"outputs\":[");
    const Answer answer(input, entry, outcome.rows, results);
    bool binary = input.binary_output && !answer.numbers().empty();
    for (size_t i = 0; i < input.head_count; ++i) {
      const Head& head = entry.heads[input.heads[i]];
      if (i != 0) append(out, ",");
      append_output(out, input, head, answer);
      binary |= wants_bytes(input, head);
    }
    for (const Answer::Numbers& numbers : answer.numbers()) {
      append(out, ",");
      append_output(out, input, numbers, answer);
    }
    append(out, "]}");
    if (!binary) return 0;
    const size_t head_bytes = out.size();
    for (size_t i = 0; i < input.head_count; ++i) {
      const Head& head = entry.heads[input.heads[i]];
      if (!wants_bytes(input, head)) continue;
      answer.write(head, out.extend(answer.values(head) * dtype_size(input.dtype)));
    }
    if (input.binary_output) {
      for (const Answer::Numbers& numbers : answer.numbers())
        out.append(numbers.values.data(), numbers.values.size_bytes());
    }
    return head_bytes;
  }

  // Requests come one by one: errors are the business of the call.
  void encode_error(std::string_view, int, std::string_view, ByteBuffer&) const override {}
};

}  // namespace

const Codec& rest_codec() {
  static const RestCodec codec;
  return codec;
}

}  // namespace fused_mlp::front
