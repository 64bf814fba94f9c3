// SPDX-License-Identifier: Apache-2.0
// Reads inference.ModelInferRequest, by the field numbers of protos/open_inference.proto.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "codec/predict_input.hpp"

namespace fused_mlp {

// Fills `input` with views into [data, data + size). Returns what is wrong with it, or nothing.
std::string read_infer_request(const uint8_t* data, size_t size, PredictInput& input);

}  // namespace fused_mlp
