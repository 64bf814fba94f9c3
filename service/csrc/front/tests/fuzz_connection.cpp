// libFuzzer over the byte stream of a connection: a whole loop, with engine and hand-off, on one thread. The
// first byte says whether the client's preface is put before the input (most inputs would never find it) and
// how the rest is cut into reads.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "front/application.hpp"
#include "front/loop.hpp"
#include "toy_model.hpp"

using namespace fused_mlp::front;

namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr std::string_view kSettings("\0\0\0\4\0\0\0\0\0", 9);

Limits small_limits() {
  Limits limits;
  limits.max_message_bytes = 64u << 10;
  limits.max_concurrent_streams = 32;
  limits.max_output_bytes = 64u << 10;
  limits.max_buffered_bytes = 1u << 20;
  return limits;
}

// Answers what it is handed at once, on the same thread.
void play_python(Bridge& bridge) {
  for (const Event& event : bridge.drain()) {
    if (event.kind == EventKind::start) bridge.send(event.call, event.body);
    if (event.kind == EventKind::message) bridge.message_done(event.call);
    if (event.kind == EventKind::half_close || event.path.ends_with("Check")) {
      bridge.finish(event.call, 5, "not % found", {{"x-bin", std::string(3, '\0')}});
    }
  }
}

struct Rig {
  test::ToyService toy{0};
  Bridge bridge;
  Loop loop{small_limits(), nullptr, [] {}};

  Rig() {
    const std::vector<PythonRpc> rpcs = {{"/grpc.health.v1.Health/Check", false}, {"/s.S/Stream", true}};
    loop.serve_here(make_service_application(loop, toy.engine, toy.router, bridge, rpcs));
  }
  void turn() {
    loop.round(0);
    play_python(bridge);
  }
};

void drain(int fd) {
  char bytes[4096];
  while (::read(fd, bytes, sizeof bytes) > 0) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Rig* rig = new Rig;
  if (size == 0) return 0;
  const uint8_t choice = *data++;
  --size;
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) != 0) return 0;
  rig->loop.adopt(fds[0]);
  rig->turn();
  if ((choice & 1) != 0) {
    ::send(fds[1], kPreface.data(), kPreface.size(), MSG_NOSIGNAL);
    ::send(fds[1], kSettings.data(), kSettings.size(), MSG_NOSIGNAL);
  }
  const size_t step = (choice & 2) != 0 ? 1u + choice / 4 : size;
  while (size != 0) {
    const size_t n = std::min(size, std::max<size_t>(step, 1));
    if (::send(fds[1], data, n, MSG_NOSIGNAL) != static_cast<ssize_t>(n)) break;  // closed on us, or full
    data += n;
    size -= n;
    rig->turn();
    if ((choice & 128) == 0) drain(fds[1]);  // else a peer that never reads
  }
  rig->turn();
  ::close(fds[1]);
  for (int i = 0; i < 3; ++i) rig->turn();
  if (rig->loop.connections() != 0 || !rig->loop.application().idle() || rig->loop.assembly().used() != 0) {
    std::abort();  // something of the connection was left behind
  }
  return 0;
}
