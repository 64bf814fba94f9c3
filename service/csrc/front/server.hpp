// The listening socket and the loops behind it. Started, drained and stopped from any one thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "front/limits.hpp"
#include "front/loop.hpp"
#include "front/transport.hpp"

namespace fused_mlp::front {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  unsigned loops = 1;
  Limits limits;
  TlsFiles tls;
};

class Server {
 public:
  using MakeApplication = std::function<std::unique_ptr<Application>(Loop& loop)>;

  // Binds; throws std::runtime_error in one line when it cannot.
  explicit Server(const ServerOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const { return port_; }
  const std::vector<std::unique_ptr<Loop>>& loops() const { return loops_; }
  void start(const MakeApplication& make_application);
  // Stops accepting, refuses new calls, sends GOAWAY; open calls go on.
  void begin_drain();
  // Until every connection is closed. False if the time ran out.
  bool wait_drained(std::chrono::nanoseconds timeout);
  void stop();

 private:
  void place(int fd);

  const uint32_t max_connections_;
  std::unique_ptr<TlsContext> tls_;
  std::vector<std::unique_ptr<Loop>> loops_;
  int listen_fd_ = -1;
  uint16_t port_ = 0;
  std::mutex mutex_;
  std::condition_variable drained_;
};

}  // namespace fused_mlp::front
