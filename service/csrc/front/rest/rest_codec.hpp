// SPDX-License-Identifier: Apache-2.0
// The messages of the Open Inference Protocol over REST: JSON, perhaps with binary tensors behind it.
#pragma once

#include <string>

#include "codec/codec.hpp"

namespace fused_mlp::front {

// The model, the version and the bytes of JSON are set in the input before it is decoded: the request's path
// and headers say them.
const Codec& rest_codec();

// Reads a request; returns what is wrong with it. In a build without simdjson nothing can be read.
std::string read_rest_request(const uint8_t* data, size_t size, PredictInput& input);

}  // namespace fused_mlp::front
