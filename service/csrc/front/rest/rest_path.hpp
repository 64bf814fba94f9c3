// SPDX-License-Identifier: Apache-2.0
// The paths of the Open Inference Protocol over REST. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fused_mlp::front {

enum class Verb : uint8_t { get, head, post, options, other };
Verb verb_of(std::string_view name);
const char* verb_name(Verb verb);

// Where a request goes. Predictions are answered here, everything else by Python, which reads the path again.
struct RestPath {
  bool infer = false;
  bool broken = false;         // percent-encoding that cannot be read, or is not UTF-8
  std::string model, version;  // of a prediction, decoded; version empty: the default
};

// `path` becomes that of a request's target, with its query, cut to `most` bytes: "/v2?a=b" is itself one,
// "http://host/v2" has "/v2".
void read_target(std::string_view target, size_t most, std::string& path);

// `target` with its query: "/v2/models/digits/versions/1/infer".
RestPath read_rest_path(std::string_view target);

// "a%20b" -> "a b"; nullopt: a '%' without two hex digits.
std::optional<std::string> percent_decode(std::string_view text);

}  // namespace fused_mlp::front
