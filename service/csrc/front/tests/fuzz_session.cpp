// SPDX-License-Identifier: Apache-2.0
// libFuzzer over what a peer does, not over its bytes: the input is a list of actions, three bytes each, on
// two connections. It reaches states that bytes alone hardly find: references into the dynamic table,
// messages held behind shut windows, gzip, windows that open by a byte, header blocks that do not end.
#include <algorithm>
#include <array>
#include <vector>

#include "front/tests/gzipped.hpp"
#include "fuzz_rig.hpp"

using namespace fused_mlp::front::test;
using fused_mlp::front::gzipped;

namespace {

enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettingsType = 4,
  kPing = 6,
  kWindow = 8,
  kMore = 9
};
constexpr uint8_t kEndStream = 1, kAck = 1, kEndHeaders = 4;

std::string number(size_t value, int bytes) {
  std::string text;
  while (bytes-- > 0) text.push_back(static_cast<char>(value >> (8 * bytes)));
  return text;
}

std::string frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  return number(payload.size(), 3) + number(type, 1) + number(flags, 1) + number(stream, 4) +
         std::string(payload);
}

// HPACK, with lengths of up to 127 + 128 * 127 bytes.
std::string text_field(std::string_view text) {
  if (text.size() < 127) return number(text.size(), 1) + std::string(text);
  const size_t rest = text.size() - 127;
  return number(127, 1) + number(rest % 128 | 128, 1) + number(rest / 128, 1) + std::string(text);
}
std::string literal(std::string_view name, std::string_view value, bool indexed) {
  return (indexed ? "\x40" : std::string(1, '\0')) + text_field(name) + text_field(value);
}

std::string framed(std::string_view message, bool compressed) {
  return number(compressed, 1) + number(message.size(), 4) + std::string(message);
}

// PredictRequest{model: "digits", input: {shape: [1, 64], data: 256 bytes}}
std::string predict() {
  const std::string tensor = std::string("\x0a\x02\x01\x40\x1a\x80\x02", 7) + std::string(256, '\0');
  return "\x0a\x06"
         "digits"
         "\x1a" +
         number(tensor.size() % 128 | 128, 1) + number(tensor.size() / 128, 1) + tensor;
}

// Payloads of DATA frames: many empty messages, good ones, bombs up to and over the limit, unfinished
// ones.
const std::array<std::string, 8>& bodies() {
  static const std::array<std::string, 8> made = [] {
    std::string empty, good;
    for (int i = 0; i < 3000; ++i) empty += framed("", false);
    for (int i = 0; i < 8; ++i) good += framed(predict(), false);
    const std::string bomb = framed(gzipped(std::string(64u << 10, '\0')), true);
    return std::array<std::string, 8>{empty,
                                      good,
                                      bomb + bomb + bomb + bomb,
                                      framed(gzipped(std::string((64u << 10) + 1, '\0')), true),
                                      framed(gzipped(predict()), true),
                                      framed(std::string(60u << 10, '\0'), false).substr(0, 16u << 10),
                                      framed("ab", false).substr(0, 6),
                                      framed(predict(), false)};
  }();
  return made;
}

class Peer {
 public:
  explicit Peer(Rig& rig) : rig_(rig), fd_(rig.connect()) {
    send(kPreface);
    send(kSettings);
    send(frame(kSettingsType, kAck, 0, ""));  // the server's windows hold from here on
  }
  ~Peer() { ::close(fd_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void act(uint8_t action, uint8_t a, uint8_t b) {
    const uint32_t stream = 1 + 2u * (a % 32);
    switch (action % 12) {
      case 0:
        last_ += 2;
        return send(frame(kHeaders, kEndHeaders | (a & 1), last_, block(a, b)));
      case 1:
        return send(frame(kData, a & kEndStream, 1 + 2u * (b % 32), bodies()[a / 2 % 8]));
      case 2:
        return send(frame(kData, a & kEndStream, last_, bodies()[b % 8]));
      case 3:
        return send(frame(kReset, 0, stream, number(8, 4)));
      case 4:
        return send(frame(kSettingsType, 0, 0, number(4, 2) + number(b % 4 == 0 ? 0 : size_t{b} * b, 4)));
      case 5:
        return send(frame(kWindow, 0, (a & 128) != 0 ? 0 : stream, number(size_t{b} * b * b, 4)));
      case 6:  // a block that goes on, or ends, later
        last_ += 2;
        open_ = last_;
        return send(frame(kHeaders, 0, open_, block(a, b)));
      case 7:
        return send(frame(kMore, (a & 1) != 0 ? kEndHeaders : 0, open_, std::string(b, '\xbe')));
      case 8:
        reads_ = !reads_;
        return;
      case 9:
        return send(frame(kPing, 0, 0, "12345678"));
      case 10:  // any frame at all
        return send(frame(a, b, stream, std::string(b % 16, static_cast<char>(a))));
      default:
        for (int i = 0; i < b % 8; ++i) rig_.turn((a & 1) != 0);
        return;
    }
  }

 private:
  // A request's fields; `b` says what the dynamic table adds to them, by one byte each.
  static std::string block(uint8_t a, uint8_t b) {
    constexpr std::array<std::string_view, 6> kPaths = {"/fused_mlp.v1.Inference/Predict",
                                                        "/fused_mlp.v1.Inference/PredictStream",
                                                        "/grpc.health.v1.Health/Check",
                                                        "/inference.GRPCInferenceService/ModelStreamInfer",
                                                        "/s.S/Stream",
                                                        "/no/Such"};
    std::string fields = "\x83\x86\x01\x01y\x04" + text_field(kPaths[a / 2 % kPaths.size()]) +
                         literal("content-type", "application/grpc", false) +
                         literal("te", "trailers", false);
    if ((a & 16) != 0) fields += literal("grpc-encoding", "gzip", false);
    if ((b & 1) != 0) fields += literal(b & 2 ? "x-bin" : "x", std::string(1200, 'a'), true);
    if ((b & 4) != 0) fields += std::string(size_t{b} * 4, static_cast<char>(0xbe + b / 64));
    return fields;
  }

  void send(std::string_view bytes) {
    // A socket that is full, or closed on us, loses the rest: that is a peer too.
    [[maybe_unused]] const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    rig_.turn();
    if (reads_) drain(fd_);
  }

  Rig& rig_;
  const int fd_;
  uint32_t last_ = static_cast<uint32_t>(-1);
  uint32_t open_ = 1;
  bool reads_ = true;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Rig* rig = new Rig;
  {
    Peer peers[] = {Peer(*rig), Peer(*rig)};
    for (; size >= 3; data += 3, size -= 3) peers[data[0] >> 7].act(data[0] & 127, data[1], data[2]);
  }
  rig->check_empty();
  return 0;
}
