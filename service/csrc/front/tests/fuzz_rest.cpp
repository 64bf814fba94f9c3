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
void read_body(const uint8_t* data, size_t size, size_t head_bytes) {
  static const ToyService toy(0);
  static const auto table = toy.router.table();
  PredictInput input;
  input.model = "heads";
  input.head_bytes = head_bytes;
  if (!rest_codec().decode(data, size, input).empty()) return;
  const Route route =
      table->resolve({input.model, input.arm.version, input.arm.variant, {}, {}, input.arm.label});
  if (!route.ok()) return;
  const TensorCheck check = input.check(*route.entry);
  if (!check.ok()) return;
  std::vector<float> x(size_t{check.rows} * route.entry->in_features);
  to_float32(input.dtype, input.data.data(), x.size(), x.data());
  std::vector<float> y(size_t{check.rows} * route.entry->out_features, x[0]);
  Outcome outcome;
  outcome.y = y.data();
  outcome.rows = check.rows;
  ByteBuffer out;
  rest_codec().encode(input, *route.entry, route.variant, outcome, {y.data()}, out);
  std::string answer(reinterpret_cast<const char*>(out.data()), out.size());
  const size_t first = answer.find("\"data\":[");
  if (first == std::string::npos || input.dtype != DType::fp32 || !input.typed) return;
  const float back = std::strtof(answer.c_str() + first + 8, nullptr);
  if (std::memcmp(&back, &x[0], sizeof back) != 0) std::abort();  // what went in has not come out
}

void read_connection(const uint8_t* data, size_t size, uint8_t choice) {
  static Rig* rig = new Rig;
  const int fd = rig->connect(Speech::rest);
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
  (choice & 4) != 0 ? read_body(data, size, head_bytes) : read_connection(data, size, choice);
  return 0;
}
