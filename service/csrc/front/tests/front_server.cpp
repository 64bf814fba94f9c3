// SPDX-License-Identifier: Apache-2.0
// The native front as a program of its own, without Python: what the Python suite talks to when it runs under
// a sanitizer. Takes each limit from a variable of its own, such as FUSED_MLP_MAX_PINGS_PER_S, and prints
// the banner of the service; the calls that Python would answer are answered by a thread.
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <unordered_set>

#include "front/methods/application.hpp"
#include "front/server/server.hpp"
#include "toy_model.hpp"

using namespace fused_mlp::front;

namespace {

template <class T>
void read_setting(const char* name, T& value) {
  const char* text = std::getenv((std::string("FUSED_MLP_") + name).c_str());
  if (text == nullptr || *text == '\0') return;
  if constexpr (std::is_same_v<T, std::string>) {
    value = text;
  } else {
    value = std::string_view(text) == "off" ? static_cast<T>(-1) : static_cast<T>(std::strtod(text, nullptr));
  }
}

int bind_loopback(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::exit(1);
  return fd;
}

int port_of(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

ServerOptions read_options() {
  ServerOptions options;
  uint16_t port = 0;
  int rest_port = -1;
  Limits& limits = options.limits;
  options.loops = 2;
  read_setting("FRONT_LOOPS", options.loops);
  read_setting("GRPC_PORT", port);
  read_setting("REST_PORT", rest_port);
  options.listener = bind_loopback(port);
  if (rest_port >= 0) options.rest_listener = bind_loopback(static_cast<uint16_t>(rest_port));
  read_setting("TLS_CERTIFICATE", options.tls.certificate);
  read_setting("TLS_KEY", options.tls.key);
  read_setting("TLS_CLIENT_CA", options.tls.client_ca);
  read_setting("TLS_CRL", options.tls.crl);
  read_setting("MAX_MESSAGE_BYTES", limits.max_message_bytes);
  read_setting("MAX_HEADER_BYTES", limits.max_header_bytes);
  read_setting("MAX_CONCURRENT_STREAMS", limits.max_concurrent_streams);
  read_setting("MAX_OUTPUT_BYTES", limits.max_output_bytes);
  read_setting("MAX_CONNECTIONS", limits.max_connections);
  read_setting("MAX_CONNECTIONS_PER_PEER", limits.max_connections_per_peer);
  read_setting("MAX_BUFFERED_BYTES", limits.max_buffered_bytes);
  read_setting("MAX_TOTAL_OUTPUT_BYTES", limits.max_total_output_bytes);
  read_setting("MAX_CALL_BYTES", limits.max_call_bytes);
  read_setting("MAX_CONTROL_CALLS", limits.max_control_calls);
  read_setting("MAX_CONTROL_BYTES", limits.max_control_bytes);
  read_setting("FIRST_MESSAGE_TIMEOUT_S", limits.first_message_timeout_s);
  read_setting("CONTROL_IDLE_TIMEOUT_S", limits.control_idle_timeout_s);
  read_setting("MAX_RESETS_PER_S", limits.max_resets_per_s);
  read_setting("MAX_PINGS_PER_S", limits.max_pings_per_s);
  read_setting("MAX_SETTINGS_PER_S", limits.max_settings_per_s);
  read_setting("MAX_CONTROL_FRAMES_PER_S", limits.max_control_frames_per_s);
  read_setting("HANDSHAKE_TIMEOUT_S", limits.handshake_timeout_s);
  read_setting("RECEIVE_TIMEOUT_S", limits.receive_timeout_s);
  read_setting("SEND_TIMEOUT_S", limits.send_timeout_s);
  read_setting("KEEPALIVE_S", limits.keepalive_s);
  read_setting("KEEPALIVE_TIMEOUT_S", limits.keepalive_timeout_s);
  read_setting("IDLE_TIMEOUT_S", limits.idle_timeout_s);
  read_setting("MAX_CONNECTION_AGE_S", limits.max_connection_age_s);
  return options;
}

// Plays Python's part: unary calls and watches get "SERVING", streams get their own messages back.
class Answers {
 public:
  Answers(Bridge& bridge, int stop_fd) : bridge_(bridge), stop_fd_(stop_fd) {}

  void run() {
    pollfd fds[] = {{bridge_.fileno(), POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    while (fds[1].revents == 0) {
      ::poll(fds, 2, -1);
      for (const Event& event : bridge_.drain()) answer(event);
    }
  }

 private:
  void answer(const Event& event) {
    switch (event.kind) {
      case EventKind::start:
        if (event.path.ends_with("ServerReflectionInfo")) return;
        bridge_.send(event.call, "\x08\x01");
        if (!event.path.ends_with("Watch")) bridge_.finish(event.call, 0, "", {});
        return;
      case EventKind::message:
        bridge_.send(event.call, event.body);
        return bridge_.message_done(event.call);
      case EventKind::half_close:
        return bridge_.finish(event.call, 0, "", {});
      default:
        return;
    }
  }

  Bridge& bridge_;
  int stop_fd_;
};

}  // namespace

int main() {
  // Taken by sigwait below, not by a thread of the server.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  uint32_t queue_rows = 8192, max_request_rows = 4096;
  read_setting("QUEUE_ROWS", queue_rows);
  read_setting("MAX_REQUEST_ROWS", max_request_rows);
  test::ToyService toy(1, queue_rows, max_request_rows);
  const ServerOptions options = read_options();
  const int port = port_of(options.listener), rest_port = port_of(options.rest_listener);
  HealthTable health;
  Bridge bridge(options.limits.max_control_bytes);
  Server server(options);
  const std::vector<PythonRpc> rpcs = {
      {"/grpc.health.v1.Health/Check", false},
      {"/grpc.health.v1.Health/Watch", false},
      {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", true}};
  server.start([&](Loop& loop) {
    return make_service_application(loop, toy.engine, toy.router, bridge, health, rpcs,
                                    RestOptions{options.rest_listener >= 0, {}});
  });
  server.listen();
  int stop_pipe[2];
  if (::pipe(stop_pipe) != 0) return 1;
  Answers answers(bridge, stop_pipe[0]);
  std::thread thread([&] { answers.run(); });
  std::printf("a stand-in for the service\n  gRPC     127.0.0.1:%d (native front)\n", port);
  if (options.rest_listener >= 0) std::printf("  REST     http://127.0.0.1:%d/v2\n", rest_port);
  std::printf("  metrics  http://127.0.0.1:0/metrics\n  try      a test\n");
  std::fflush(stdout);

  int signal_number = 0;
  while (sigwait(&signals, &signal_number) == 0 && signal_number == SIGHUP) server.reload_tls();
  server.begin_drain();
  server.wait_drained(std::chrono::seconds(2));
  server.stop();
  ::close(stop_pipe[1]);
  thread.join();
  ::close(stop_pipe[0]);
  return 0;
}
