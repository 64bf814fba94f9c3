// SPDX-License-Identifier: Apache-2.0
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
#include "front/server/loop.hpp"
#include "front/server/seats.hpp"
#include "front/tls/transport.hpp"

namespace fused_mlp::front {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;   // 0: any free one
  int rest_port = -1;  // -1: none
  unsigned loops = 1;
  Limits limits;
  TlsFiles tls;
  std::string purpose = "gRPC", setting = "FUSED_MLP_GRPC_PORT";  // for the text of a port that is taken
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
  uint16_t rest_port() const { return rest_port_; }  // 0: none
  const Budgets& budgets() const { return budgets_; }
  const std::vector<std::unique_ptr<Loop>>& loops() const { return loops_; }
  void start(const MakeApplication& make_application);
  // Stops accepting, sends GOAWAY; calls that have begun here go on, and clients retry the others elsewhere.
  void begin_drain();
  // Until every connection is closed. False if the time ran out.
  bool wait_drained(std::chrono::nanoseconds timeout);
  void stop();
  void allow_messages(size_t bytes) { budgets_.allow_messages(bytes); }
  // Calls tick() of every application soon: something that requests wait for has changed.
  void wake_applications();
  // Of TlsContext; from any thread.
  void reload_tls() {
    if (tls_ != nullptr) tls_->reload();
  }

 private:
  void place(int fd, Speech speech);
  void make_room(std::shared_ptr<Seat> seat);

  Seats seats_;  // outlives the loops
  Budgets budgets_;
  std::unique_ptr<TlsContext> tls_;
  std::vector<std::unique_ptr<Loop>> loops_;
  int listen_fd_ = -1, rest_fd_ = -1;
  uint16_t port_ = 0, rest_port_ = 0;
  std::mutex mutex_;
  std::condition_variable drained_;
};

}  // namespace fused_mlp::front
