// SPDX-License-Identifier: Apache-2.0
#include "front/server/server.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace fused_mlp::front {
namespace {

constexpr int kBacklog = 1024;
// Connections on their way out keep their descriptors until their loop runs. Beyond this, newcomers wait in
// the backlog until the next sweep.
constexpr int kMaxMakingRoom = 32;
// A connection that makes room may wait a second for its peer's answer to GOAWAY; beyond this many it does
// not.
constexpr uint32_t kMaxLeaving = 32;

}  // namespace

Server::Server(const ServerOptions& options)
    : seats_(options.limits),
      budgets_(options.limits),
      listen_fd_(options.listener),
      rest_fd_(options.rest_listener) {
  if (!options.tls.certificate.empty()) tls_ = std::make_unique<TlsContext>(options.tls);
  const unsigned loops = std::max(1u, options.loops);
  for (unsigned i = 0; i < loops; ++i) {
    loops_.push_back(std::make_unique<Loop>(options.limits, budgets_, loops, tls_.get(), [this] {
      const std::lock_guard lock(mutex_);
      drained_.notify_all();
    }));
  }
}

Server::~Server() {
  stop();
  if (listen_fd_ >= 0) ::close(listen_fd_);
  if (rest_fd_ >= 0) ::close(rest_fd_);
}

void Server::start(const MakeApplication& make_application) {
  for (auto& loop : loops_) loop->start(make_application(*loop));
}

void Server::listen() {
  Loop& first = *loops_.front();
  const auto listen = [&](int& listener, Protocol protocol) {
    if (::listen(listener, kBacklog) != 0) {
      throw std::runtime_error(std::string("cannot listen: ") + std::strerror(errno));
    }
    first.listen(
        std::exchange(listener, -1), protocol, [this, protocol](int fd) { place(fd, protocol); },
        [this] { return make_room(seats_.free_one(), true); },
        [this] { return making_room_ < kMaxMakingRoom; });
  };
  listen(listen_fd_, Protocol::grpc);
  if (rest_fd_ >= 0) listen(rest_fd_, Protocol::rest);
}

// On the accepting loop's thread. To the loop with the fewest connections: a hash would often give one of two
// loops six of eight.
void Server::place(int fd, Protocol protocol) {
  Seats::Admission admission = seats_.admit(peer_address(fd));
  if (admission.seat == nullptr) return loops_.front()->turn_away(fd, admission.refusal);
  // The seat is given back with whatever holds this: the connection, or the task that was to make it.
  Seat* seat = admission.seat.get();
  std::shared_ptr<Seat> held(seat, [this, kept = std::move(admission.seat)](Seat*) { seats_.remove(kept); });
  const auto fewer = [](const auto& a, const auto& b) { return a->connections() < b->connections(); };
  seat->loop = std::min_element(loops_.begin(), loops_.end(), fewer)->get();
  // First: if it throws, the socket is still the caller's.
  make_room(std::move(admission.making_room), seats_.leaving() > kMaxLeaving);
  seat->loop->adopt(fd, std::move(held), protocol);
}

bool Server::make_room(std::shared_ptr<Seat> seat, bool at_once) {
  if (seat == nullptr) return false;
  Loop& loop = *seat->loop;
  loop.run_soon([this, at_once, seat = std::move(seat)] {
    --making_room_;
    Connection* connection = seat->connection;
    if (connection == nullptr) return;
    if (!connection->idle()) return seats_.keep(*seat);
    connection->give_way();
    if (at_once) connection->close(End::crowded_out);  // its peer could take a second to answer GOAWAY
  });
  ++making_room_;  // signed: the task may have run before
  return true;
}

void Server::begin_drain() {
  for (auto& loop : loops_) loop->begin_drain();
}

bool Server::wait_drained(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  return drained_.wait_for(lock, timeout, [this] {
    return std::all_of(loops_.begin(), loops_.end(), [](const auto& loop) { return loop->drained(); });
  });
}

void Server::wake_applications() {
  for (auto& loop : loops_) loop->run_soon([each = loop.get()] { each->application().tick(); });
}

void Server::stop() {
  for (auto& loop : loops_) loop->stop();
}

}  // namespace fused_mlp::front
