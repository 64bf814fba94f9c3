// SPDX-License-Identifier: Apache-2.0
// Writes the answers; rest_request.cpp reads the requests.
#include "front/rest/rest_codec.hpp"

#include <charconv>

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
void append_numbers(ByteBuffer& out, const Results& results, size_t rows, const RouteEntry& entry,
                    const Head& head, DType dtype) {
  ByteBuffer bytes;
  const size_t count = rows * head.width;
  write_head(results, rows, entry, head, dtype, bytes.extend(count * dtype_size(dtype)));
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

void append_output(ByteBuffer& out, const PredictInput& input, const RouteEntry& entry, const Head& head,
                   const Outcome& outcome, const Results& results) {
  append_text(out, "{\"name\":", head.name);
  append(out, ",\"datatype\":\"");
  append(out, dtype_name(input.dtype));
  append(out, "\",\"shape\":[");
  if (input.leading <= 1) {
    append_number(out, outcome.rows);
    append(out, ",");
  } else {
    for (size_t i = 0; i < input.leading; ++i) {
      append_number(out, static_cast<uint64_t>(input.dimensions[i]));
      append(out, ",");
    }
  }
  append_number(out, head.width);
  if (wants_bytes(input, head)) {
    append(out, "],\"parameters\":{\"binary_data_size\":");
    append_number(out, size_t{outcome.rows} * head.width * dtype_size(input.dtype));
    append(out, "}}");
  } else {
    append(out, "],\"data\":[");
    append_numbers(out, results, outcome.rows, entry, head, input.dtype);
    append(out, "]}");
  }
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
      if (!wants_bytes(input, head)) numbers += size_t{rows} * head.width;
    }
    return numbers > kQuickNumbers;
  }
  // -1.17549435e-38 or -2.2250738585072014e-308 and a comma, and the float that it is made from.
  size_t most_bytes_of_number(DType dtype) const override {
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
    bool binary = false;
    for (size_t i = 0; i < input.head_count; ++i) {
      const Head& head = entry.heads[input.heads[i]];
      if (i != 0) append(out, ",");
      append_output(out, input, entry, head, outcome, results);
      binary |= wants_bytes(input, head);
    }
    append(out, "]}");
    if (!binary) return 0;
    const size_t head_bytes = out.size();
    for (size_t i = 0; i < input.head_count; ++i) {
      const Head& head = entry.heads[input.heads[i]];
      if (!wants_bytes(input, head)) continue;
      const size_t size = size_t{outcome.rows} * head.width * dtype_size(input.dtype);
      write_head(results, outcome.rows, entry, head, input.dtype, out.extend(size));
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
