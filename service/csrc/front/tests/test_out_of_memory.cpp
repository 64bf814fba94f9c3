// SPDX-License-Identifier: Apache-2.0
// Every allocation fails once: the process goes on, everything that was begun is given back, and the next
// peer is served. An executable of its own, because it replaces operator new.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "front/methods/application.hpp"
#include "front/server/loop.hpp"
#include "front/tests/gzipped.hpp"
#include "toy_model.hpp"

namespace {

// Allocations of this thread fail from the `countdown`th on, `failing` of them. 0: none.
thread_local size_t countdown = 0, failing = 0;

bool must_fail() {
  if (countdown == 0) return false;
  if (countdown > 1) return --countdown, false;
  if (--failing == 0) countdown = 0;
  return true;
}

void* allocate(size_t size) {
  if (must_fail()) throw std::bad_alloc();
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Not inlined: GCC takes malloc and delete in one function for a mismatch (seen with ThreadSanitizer).
[[gnu::noinline]] void* operator new(size_t size) { return allocate(size); }
[[gnu::noinline]] void* operator new[](size_t size) { return allocate(size); }
[[gnu::noinline]] void* operator new[](size_t size, const std::nothrow_t&) noexcept {  // of simdjson
  return must_fail() ? nullptr : std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t& none) noexcept {
  return operator new[](size, none);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

using namespace fused_mlp;
using namespace fused_mlp::front;
using fused_mlp::front::test::ToyService;

namespace {

std::string number(size_t value, int bytes) {
  std::string text;
  while (bytes-- > 0) text.push_back(static_cast<char>(value >> (8 * bytes)));
  return text;
}
std::string frame(int type, int flags, int stream, const std::string& payload) {
  return number(payload.size(), 3) + number(type, 1) + number(flags, 1) + number(stream, 4) + payload;
}
std::string field(const std::string& name, const std::string& value) {  // each below 127 bytes
  return std::string(1, '\0') + number(name.size(), 1) + name + number(value.size(), 1) + value;
}
std::string framed(const std::string& body, bool compressed = false) {
  return number(compressed, 1) + number(body.size(), 4) + body;
}
std::string predict(const std::string& model) {
  const std::string tensor = std::string("\x0a\x02\x01\x40\x1a\x80\x02", 7) + std::string(256, '\0');
  return "\x0a" + number(model.size(), 1) + model + "\x1a" + number(tensor.size() % 128 | 128, 1) +
         number(tensor.size() / 128, 1) + tensor;
}

constexpr int kEndStream = 1, kEndHeaders = 4;
constexpr const char* kPredict = "/fused_mlp.v1.Inference/Predict";
constexpr const char* kStream = "/fused_mlp.v1.Inference/PredictStream";

std::string call(int stream, const std::string& path, const std::string& body, const std::string& extra = {},
                 bool end = true) {
  const std::string fields = "\x83\x86" + field(":authority", "test") + field(":path", path) +
                             field("content-type", "application/grpc") + field("te", "trailers") + extra;
  return frame(1, kEndHeaders, stream, fields) + frame(0, end ? kEndStream : 0, stream, body);
}

const std::string kHello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, "");

// One of each kind of call, good and bad; the last ones are still open when the peer goes.
std::string everything() {
  const std::string metadata = field("x-long-metadata-name", std::string(100, 'v'));
  return call(1, kPredict, framed(predict("digits")), metadata) +
         call(3, kPredict, framed(predict("a model with a name that no small string holds"))) +
         call(5, kStream,
              framed(predict("digits")) + framed(predict("nonesuch")) + framed(predict("digits"))) +
         call(7, kPredict, framed(gzipped(predict("digits")), true), field("grpc-encoding", "gzip")) +
         call(9, "/no/such/method/is/served/by/anything/here", framed("")) +
         call(11, "/grpc.health.v1.Health/Check", framed("")) +
         call(13, "/python.Service/Unary", framed("message"), metadata) +
         call(15, "/python.Service/Stream", framed("first"), metadata, false) +
         frame(0, kEndStream, 15, framed("second")) +
         call(17, kPredict, framed(predict("digits")).substr(0, 100), {}, false) +
         call(19, "/python.Service/Stream", framed("cancelled"), metadata, false) +
         frame(3, 0, 19, number(8, 4)) + call(21, kStream, framed(predict("digits")), metadata, false) +
         call(23, "/python.Service/Stream", framed("left open"), {}, false);
}

// A DATA frame that has room for ten numbers.
bool has_prediction(const std::string& received) {
  for (size_t at = 0; at + 9 <= received.size();) {
    const size_t size =
        size_t{static_cast<uint8_t>(received[at + 1])} << 8 | static_cast<uint8_t>(received[at + 2]);
    if (received[at + 3] == 0 && size > 10 * sizeof(float)) return true;
    at += 9 + size;
  }
  return false;
}

struct Rig {
  const Protocol protocol;
  ToyService toy{0};
  Bridge bridge;
  HealthTable health;
  Budgets budgets{Limits()};
  Loop loop{Limits(), budgets, 1, nullptr, [] {}};
  bool writes_elsewhere = false;

  explicit Rig(Protocol given) : protocol(given) {
    health.publish({{"", {}}});
    const std::vector<PythonRpc> rpcs = {{"/python.Service/Unary", false}, {"/python.Service/Stream", true}};
    loop.serve_here(make_service_application(loop, toy.engine, toy.router, bridge, health, rpcs,
                                             RestOptions{true, {"https://a.example"}}));
  }

  void turn() {
    // Routes that the loop has yet to see.
    const size_t armed = std::exchange(countdown, 0);
    toy.router.update({"gone"}, {});
    countdown = armed;
    loop.round(0);
    try {
      play_python();
    } catch (const std::bad_alloc&) {  // Python's own matter
    }
  }
  // -1: not for lack of memory.
  int connect() {
    int fds[2];
    CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    try {
      loop.adopt(fds[0], nullptr, protocol);
      return fds[1];
    } catch (const std::bad_alloc&) {
      ::close(fds[0]);  // as Loop::place does
      ::close(fds[1]);
      return -1;
    }
  }
  void serve(const std::string& bytes) {
    const int fd = connect();
    if (fd < 0) return;
    [[maybe_unused]] const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    for (int i = 0; i < 12; ++i) turn();  // of HTTP/1.1 one request in each
    while (writes_elsewhere && !loop.application().idle()) {
      loop.round(1000);  // until the other thread posts
    }
    ::close(fd);
    for (int i = 0; i < 3; ++i) turn();
  }
  std::string answers_to(const std::string& bytes) {
    const int fd = connect();
    CHECK_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    for (int i = 0; i < 6; ++i) turn();
    std::string received(4096, '\0');
    received.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(fd, received.data(), received.size()))));
    ::close(fd);
    return received;
  }
  void check_empty() {
    for (int i = 0; i < 3; ++i) turn();
    CHECK_EQ(loop.connections(), 0u);
    CHECK_EQ(loop.stats().connections.load(), 0u);
    CHECK_EQ(loop.stats().open_calls.load(), 0u);
    CHECK(loop.application().idle());
    CHECK(loop.accounts().empty());
    CHECK_EQ(bridge.budget().used(), 0u);
  }

 private:
  void play_python() {
    for (const Event& event : bridge.drain()) {
      if (event.kind == EventKind::start) bridge.send(event.call, event.body);
      if (event.kind == EventKind::message) bridge.message_done(event.call);
      const bool rest = event.kind == EventKind::start && event.path[0] != '/';
      if (event.kind == EventKind::half_close || event.path.ends_with("Unary") || rest)
        bridge.finish(event.call, 0, "", {});
    }
  }
};

// Over and over, with each allocation failing in turn.
void fail_everywhere(Protocol protocol, const std::string& bytes, const std::string& good,
                     bool (*answered)(const std::string&), bool writes_elsewhere = false) {
  for (const size_t in_a_row : {1, 3, 50}) {
    bool reached_the_end = false;
    for (size_t nth = 1; !reached_the_end; ++nth) {
      CHECK(nth < 20'000);
      Rig rig(protocol);
      rig.writes_elsewhere = writes_elsewhere;
      countdown = nth;
      failing = in_a_row;
      rig.serve(bytes);
      reached_the_end = countdown > 1;  // no allocation has failed
      countdown = 0;
      rig.check_empty();
      CHECK(answered(rig.answers_to(good)));
    }
  }
}

std::string post(const std::string& body, const std::string& fields = {}) {
  return "POST /v2/models/digits/infer HTTP/1.1\r\nHost: a\r\n" + fields +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace

TEST_CASE("any allocation may fail") {
  fail_everywhere(Protocol::grpc, kHello + everything(),
                  kHello + call(1, kPredict, framed(predict("digits"))), has_prediction);
}

TEST_CASE("any allocation may fail on the rest port") {
  std::string numbers = "0";
  for (int i = 1; i < 64; ++i) numbers += ",0.1";
  const std::string tensor = R"({"name":"input","shape":[1,64],"datatype":"FP32")";
  const std::string json = R"({"id":"an id that no small string holds, to be sure","inputs":[)" + tensor +
                           ",\"data\":[" + numbers + "]}]}";
  const std::string head = R"({"parameters":{"binary_data_output":true},"inputs":[)" + tensor +
                           R"(,"parameters":{"binary_data_size":256}}]})";
  const std::string everything =
      post(json, "Origin: https://a.example\r\n") +
      post(head + std::string(256, '\0'),
           "Inference-Header-Content-Length: " + std::to_string(head.size()) + "\r\n") +
      post(gzipped(json), "Content-Encoding: gzip\r\n") + post("{\"inputs\":[{\"data\":[nan]}]}") +
      "GET /v2/models/a%20model%20with%20a%20long%20name HTTP/1.1\r\nHost: a\r\nX-Long: " +
      std::string(100, 'v') + "\r\n\r\n" + "GARBAGE\r\n\r\n";
  fail_everywhere(Protocol::rest, everything, post(json), [](const std::string& received) {
    return received.starts_with("HTTP/1.1 200 OK") && received.ends_with("]}]}");
  });
}

TEST_CASE("any allocation may fail while a long answer is handed over") {
  const std::string head =
      R"({"inputs":[{"name":"input","shape":[200,64],"datatype":"FP32","parameters":{"binary_data_size":51200}}]})";
  const std::string request =
      post(head + std::string(51200, '\0'),
           "Inference-Header-Content-Length: " + std::to_string(head.size()) + "\r\n");
  const std::string raw = post(std::string(256, '\0'), "Inference-Header-Content-Length: 0\r\n");
  fail_everywhere(
      Protocol::rest, request, raw,
      [](const std::string& received) {
        return received.starts_with("HTTP/1.1 200 OK") && received.ends_with(std::string(40, '\0'));
      },
      true);
}

TEST_CASE("any allocation may fail while a long message is handed over") {
  std::string numbers = "0";
  for (int i = 1; i < 200 * 64; ++i) numbers += ",0.1";
  const std::string request =
      post(R"({"inputs":[{"name":"input","shape":[200,64],"datatype":"FP32","data":[)" + numbers + "]}]}");
  const std::string raw = post(std::string(256, '\0'), "Inference-Header-Content-Length: 0\r\n");
  fail_everywhere(
      Protocol::rest, request, raw,
      [](const std::string& received) { return received.starts_with("HTTP/1.1 200 OK"); }, true);
}
