// SPDX-License-Identifier: Apache-2.0
// In the place of http1.cpp and rest_request.cpp where llhttp or simdjson were missing when this was built:
// the REST port cannot be opened, so that nothing here runs.
#include "front/rest/http1.hpp"
#include "front/rest/rest_codec.hpp"

namespace fused_mlp::front {

struct Http1::Parser {};

const char* Http1::missing() {
  return "REST was not built; install " FUSED_MLP_REST_MISSING ", then build again";
}

Http1::Http1(Connection& connection) : connection_(connection) {}
Http1::~Http1() = default;
size_t Http1::process(const uint8_t*, size_t size) { return size; }
void Http1::respond(Call&, const AnswerHead&) {}
void Http1::write() {}
void Http1::sweep() {}
void Http1::begin_drain() {}
void Http1::reset(End) {}
void Http1::fail(End, int, std::string_view) {}

std::string read_rest_request(const uint8_t*, size_t, PredictInput&) { return Http1::missing(); }

}  // namespace fused_mlp::front
