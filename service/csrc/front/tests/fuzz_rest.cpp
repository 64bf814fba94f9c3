// SPDX-License-Identifier: Apache-2.0
// libFuzzer over the REST port: the bytes of a connection of HTTP/1.1 or HTTP/2, and the bodies of requests.
// The first byte says which, and how the rest is cut into reads.
#include <cstdlib>
#include <cstring>

#include "front/rest/rest_codec.hpp"
#include "fuzz_rig.hpp"

using namespace fused_mlp;
using namespace fused_mlp::front;
using namespace fused_mlp::front::test;

namespace {

// A body by itself: what can be read can be answered, and its numbers are as strtof reads them.
void read_body(const uint8_t* data, size_t size, size_t head_bytes, std::string_view model) {
  static const ToyService toy(0);
  static const auto table = toy.router.table();
  PredictInput input;
  input.model = model;
  input.head_bytes = head_bytes;
  if (!rest_codec().decode(data, size, input).empty()) return;
  const Route route =
      table->resolve({input.model, input.arm.version, input.arm.variant, {}, {}, input.arm.label});
  if (!route.ok()) return;
  const TensorCheck check = input.check(*route.entry);
  if (!check.ok()) return;
  const bool named = route.entry->layout != nullptr;
  if (named && !input.pack(*route.entry, check.rows).empty()) return;
  std::vector<float> x(size_t{check.rows} * route.entry->in_features);
  input.gather(check.rows, x.data());
  for (size_t i = 0; named && i < x.size(); i += route.entry->in_features) check_record(&x[i]);
  std::vector<float> y(size_t{check.rows} * route.entry->out_features, x[0]);
  Outcome outcome;
  outcome.y = y.data();
  outcome.rows = check.rows;
  ByteBuffer out;
  rest_codec().encode(input, *route.entry, route.variant, outcome, {y.data()}, out);
  std::string answer(reinterpret_cast<const char*>(out.data()), out.size());
  const size_t first = answer.find("\"data\":[");
  if (first == std::string::npos || named || input.dtype != DType::fp32 || !input.typed ||
      input.ranking.wanted())
    return;
  const float back = std::strtof(answer.c_str() + first + 8, nullptr);
  if (std::memcmp(&back, &x[0], sizeof back) != 0) std::abort();  // what went in has not come out
}

void read_connection(const uint8_t* data, size_t size, uint8_t choice) {
  static Rig* rig = new Rig;
  const int fd = rig->connect(Protocol::rest);
  if (fd < 0) return;
  play(*rig, fd, data, size, choice, 1u + choice / 8);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const uint8_t choice = *data++;
  --size;
  // The bytes of JSON: all, none, or so many.
  const size_t part = choice / 8u, head_bytes = part == 0 ? SIZE_MAX : part == 31 ? 0 : part * 8;
  const char* const model = (choice & 2) != 0 ? "ranker" : "heads";
  (choice & 4) != 0 ? read_body(data, size, head_bytes, model) : read_connection(data, size, choice);
  return 0;
}
