// SPDX-License-Identifier: Apache-2.0
// The listening socket and the loops behind it. Started, drained and stopped from any one thread.
#pragma once

#include <atomic>
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
  int listener = -1, rest_listener = -1;  // bound and non-blocking; -1: none
  unsigned loops = 1;
  Limits limits;
  TlsFiles tls;
};

class Server {
 public:
  using MakeApplication = std::function<std::unique_ptr<Application>(Loop& loop)>;

  // Owns the listeners from here on, unless it throws: std::runtime_error in one line for unusable TLS files.
  explicit Server(const ServerOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  const Budgets& budgets() const { return budgets_; }
  const std::vector<std::unique_ptr<Loop>>& loops() const { return loops_; }
  void start(const MakeApplication& make_application);
  // Accepts connections, which are refused until then: clients try another server at once.
  void listen();
  // Stops accepting, sends GOAWAY; calls that have begun here go on, and clients retry the others elsewhere.
  void begin_drain();
  // Until every connection is closed. False if the time ran out.
  bool wait_drained(std::chrono::nanoseconds timeout);
  void stop();
  void allow_messages(size_t bytes) { budgets_.allow_messages(bytes); }
  // Calls tick() of every application soon: something that requests wait for has changed.
  void wake_applications();
  // Reloads certificates (TlsContext); from any thread.
  void reload_tls() {
    if (tls_ != nullptr) tls_->reload();
  }

 private:
  void place(int fd, Protocol protocol);
  bool make_room(std::shared_ptr<Seat> seat, bool at_once = false);

  Seats seats_;                       // outlives the loops
  std::atomic<int> making_room_ = 0;  // connections that their loops have yet to close for newcomers
  Budgets budgets_;
  std::unique_ptr<TlsContext> tls_;
  std::vector<std::unique_ptr<Loop>> loops_;
  int listen_fd_, rest_fd_;
  std::mutex mutex_;
  std::condition_variable drained_;
};

}  // namespace fused_mlp::front
