// SPDX-License-Identifier: Apache-2.0
// Between the messages of an API and the engine. Knows protobuf and the engine's types; nothing of HTTP/2,
// gRPC or connections. Stateless: one object serves all threads.
#pragma once

#include <string>
#include <string_view>

#include "codec/byte_buffer.hpp"
#include "codec/predict_input.hpp"
#include "codec/results.hpp"
#include "engine/ticket.hpp"

namespace fused_mlp {

class Codec {
 public:
  // Fills `input` with views into [data, data + size). Returns what is wrong with it, or nothing. Whether it
  // fits a model is for PredictInput::check to say.
  virtual std::string decode(const uint8_t* data, size_t size, PredictInput& input) const = 0;
  // Appends the response message to `out`: the heads that `input` asks for, in the dtype of the input.
  // `results` has all heads side by side.
  // Returns how many bytes of it are a head in front of binary tensors; 0: it has none.
  virtual size_t encode(const PredictInput& input, const RouteEntry& entry, Variant variant,
                        const Outcome& outcome, const Results& results, ByteBuffer& out) const = 0;
  // Appends the response message of one request on a stream that failed.
  virtual void encode_error(std::string_view request_id, int code, std::string_view text,
                            ByteBuffer& out) const = 0;

  // How many bytes it takes to decode a message that must not be decoded on a loop, for it would take long;
  // 0: a loop may.
  virtual size_t decoding_bytes(size_t /*message_size*/, const PredictInput&) const { return 0; }
  // The same of encoding: numbers are written as text.
  virtual bool encodes_slowly(const PredictInput&, const RouteEntry&, uint32_t /*rows*/) const {
    return false;
  }
  // The most bytes that encode writes for each number.
  virtual size_t max_bytes_of_number(DType dtype) const { return dtype_size(dtype); }
  // Messages have gRPC's prefix in front.
  virtual bool framed() const { return true; }

 protected:
  ~Codec() = default;
};

const Codec& predict_codec();       // fused_mlp.v1: PredictRequest, PredictResponse
const Codec& infer_codec();         // inference: ModelInferRequest, ModelInferResponse
const Codec& infer_stream_codec();  // inference: ModelInferRequest, ModelStreamInferResponse

}  // namespace fused_mlp
