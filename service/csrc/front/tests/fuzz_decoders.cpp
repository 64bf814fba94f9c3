// SPDX-License-Identifier: Apache-2.0
// libFuzzer over what reads a caller's bytes once HTTP/2 has delivered them: framing, gzip, both codecs,
// headers.
#include <algorithm>
#include <cstdlib>

#include "codec/codec.hpp"
#include "front/call/message.hpp"
#include "front/call/metadata.hpp"
#include "front/grpc/framing.hpp"
#include "toy_model.hpp"

using namespace fused_mlp;
using namespace fused_mlp::front;

namespace {

constexpr size_t kMaxBytes = 64u << 10;

void decode_and_answer(const Codec& codec, const uint8_t* data, size_t size) {
  static const front::test::ToyService toy(0);
  static const auto table = toy.router.table();
  PredictInput input;
  if (!codec.decode(data, size, input).empty()) return;
  const Route route =
      table->resolve({input.model, input.arm.version, input.arm.variant, {}, {}, input.arm.label});
  if (!route.ok()) return;
  const TensorCheck check = input.check(*route.entry);
  if (!check.ok()) return;
  const bool named = route.entry->layout != nullptr;
  if (named && !input.pack(*route.entry, check.rows).empty()) return;
  std::vector<float> x(size_t{check.rows} * route.entry->in_features);
  input.gather(check.rows, x.data());
  for (size_t i = 0; named && i < x.size(); i += route.entry->in_features) front::test::check_record(&x[i]);
  std::vector<float> y(size_t{check.rows} * route.entry->out_features);
  Outcome outcome;
  outcome.y = y.data();
  outcome.rows = check.rows;
  ByteBuffer out;
  codec.encode(input, *route.entry, route.variant, outcome, {y.data()}, out);
  codec.encode_error(input.request_id, 3, "an error", out);
}

void read_messages(const uint8_t* data, size_t size, size_t step) {
  Budget budget(8 * kMaxBytes);
  Account account(budget, 1);
  {
    SlabPool slabs(account);
    PeerShare share;
    PeerAccount peer(account, share);
    AssemblyPool pool;
    MessageReader reader;
    reader.start(kMaxBytes, &pool, &peer, Encoding::gzip);
    ReadError error = ReadError::none;
    while (size != 0 && error == ReadError::none) {
      uint8_t* place = slabs.place();
      size_t n = std::min({size, step, slabs.room()});
      std::copy_n(data, n, place);
      slabs.commit(n);
      data += n;
      size -= n;
      const uint8_t* at = place;
      while (n != 0 && error == ReadError::none) {
        Message message;
        if (reader.feed(at, n, &slabs, message, error)) {
          decode_and_answer(predict_codec(), message.data(), message.size());
        }
      }
    }
    reader.reset();
  }
  if (account.used() != 0) std::abort();  // memory was not given back
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const uint8_t choice = *data++;
  --size;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  switch (choice % 4) {
    case 0:
      decode_and_answer(predict_codec(), data, size);
      break;
    case 1:
      decode_and_answer(infer_codec(), data, size);
      decode_and_answer(infer_stream_codec(), data, size);
      break;
    case 2:
      read_messages(data, size, 1u + choice / 4);
      break;
    default: {
      parse_timeout(text);
      percent_encode(text);
      if (const auto bytes = base64_decode(text); bytes && base64_decode(base64_encode(*bytes)) != bytes)
        std::abort();
      break;
    }
  }
  return 0;
}
