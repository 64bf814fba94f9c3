// SPDX-License-Identifier: Apache-2.0
// Writes the answers of the Open Inference Protocol, by the field numbers of protos/open_inference.proto.
#include "codec/codec.hpp"
#include "codec/infer_request.hpp"
#include "codec/wire.hpp"

namespace fused_mlp {
namespace {

constexpr std::string_view kVariant = "variant";

struct TensorSizes {
  TensorSizes(const PredictInput& input, const Head& head, const Outcome& outcome) {
    shape = AnswerShape(input, outcome.rows).size(head);
    tensor = bytes_field_size(head.name.size()) + bytes_field_size(dtype_name(input.dtype).size()) +
             bytes_field_size(shape);
    data = size_t{outcome.rows} * head.width * dtype_size(input.dtype);
  }
  size_t shape, tensor, data;
};

struct InferSizes {
  InferSizes(const PredictInput& input, const RouteEntry& entry, Variant variant, const Outcome& outcome)
      : version(std::to_string(entry.version)), variant_text(variant_name(variant)) {
    value = bytes_field_size(variant_text.size());
    parameter = bytes_field_size(kVariant.size()) + bytes_field_size(value);
    total = text_field_size(entry.model) + text_field_size(version) + text_field_size(input.request_id) +
            bytes_field_size(parameter);
    for (size_t i = 0; i < input.head_count; ++i) {
      const TensorSizes sizes(input, entry.heads[input.heads[i]], outcome);
      total += bytes_field_size(sizes.tensor) + bytes_field_size(sizes.data);
    }
  }
  std::string version;
  std::string_view variant_text;
  size_t value, parameter, total;
};

void write_response(Writer& w, const InferSizes& sizes, const PredictInput& input, const RouteEntry& entry,
                    const Outcome& outcome, const Results& results) {
  w.text(1, entry.model);
  w.text(2, sizes.version);
  w.text(3, input.request_id);
  w.begin(4, sizes.parameter);
  w.bytes(1, kVariant);
  w.begin(2, sizes.value);
  w.bytes(3, sizes.variant_text);
  const AnswerShape shape(input, outcome.rows);
  for (size_t i = 0; i < input.head_count; ++i) {
    const Head& head = entry.heads[input.heads[i]];
    const TensorSizes tensor(input, head, outcome);
    w.begin(5, tensor.tensor);
    w.bytes(1, head.name);
    w.bytes(2, dtype_name(input.dtype));
    w.begin(3, tensor.shape);
    shape.write(head, w);
  }
  for (size_t i = 0; i < input.head_count; ++i) {
    const Head& head = entry.heads[input.heads[i]];
    const size_t size = TensorSizes(input, head, outcome).data;
    w.begin(6, size);
    write_head(results, outcome.rows, entry, head, input.dtype, w.skip(size));
  }
}

class InferCodec final : public Codec {
 public:
  explicit InferCodec(bool streaming) : streaming_(streaming) {}

  std::string decode(const uint8_t* data, size_t size, PredictInput& input) const override {
    return read_infer_request(data, size, input);
  }

  size_t encode(const PredictInput& input, const RouteEntry& entry, Variant variant, const Outcome& outcome,
                const Results& results, ByteBuffer& out) const override {
    const InferSizes sizes(input, entry, variant, outcome);
    Writer w(out.extend(streaming_ ? bytes_field_size(sizes.total) : sizes.total));
    if (streaming_) w.begin(2, sizes.total);
    write_response(w, sizes, input, entry, outcome, results);
    return 0;
  }

  // This message has no field for a code. The id tells the caller which request failed.
  void encode_error(std::string_view request_id, int, std::string_view text, ByteBuffer& out) const override {
    const size_t response_size = text_field_size(request_id);
    Writer w(out.extend(text_field_size(text) + bytes_field_size(response_size)));
    w.text(1, text);
    w.begin(2, response_size);
    w.text(3, request_id);
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
