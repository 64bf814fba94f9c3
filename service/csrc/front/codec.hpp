// Between the messages of an API and what the engine works on. Stateless: one object serves all threads.
#pragma once

#include <string>
#include <string_view>

#include "engine/ticket.hpp"
#include "front/ask.hpp"
#include "front/buffer.hpp"

namespace fused_mlp::front {

class Codec {
 public:
  // Fills `ask` with views into [data, data + size). Returns what is wrong with it, or nothing.
  virtual std::string decode(const uint8_t* data, size_t size, Ask& ask) const = 0;
  // Appends the answer to `out`, as a whole gRPC message.
  virtual void encode(const Ask& ask, const RouteEntry& entry, Variant variant, const Outcome& outcome,
                      Buffer& out) const = 0;
  // The same for a request on a stream that failed alone.
  virtual void encode_error(std::string_view request_id, int code, std::string_view text,
                            Buffer& out) const = 0;

 protected:
  ~Codec() = default;
};

const Codec& predict_codec();       // fused_mlp.v1: PredictRequest, PredictResponse
const Codec& infer_codec();         // inference: ModelInferRequest, ModelInferResponse
const Codec& infer_stream_codec();  // inference: ModelInferRequest, ModelStreamInferResponse

}  // namespace fused_mlp::front
