// SPDX-License-Identifier: Apache-2.0
#include "front/server/server.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace fused_mlp::front {
namespace {

constexpr int kBacklog = 1024;

struct AddressDeleter {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

int open_listener(const ServerOptions& options, int port_number, const std::string& purpose,
                  const std::string& setting) {
  const std::string port = std::to_string(port_number);
  const std::string where = options.host + ":" + port;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(options.host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) throw std::runtime_error("cannot listen on " + where + ": " + ::gai_strerror(error));
  const std::unique_ptr<addrinfo, AddressDeleter> address(found);
  const int fd = ::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (fd >= 0) ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (fd < 0 || ::bind(fd, address->ai_addr, address->ai_addrlen) != 0 || ::listen(fd, kBacklog) != 0) {
    const std::string reason = std::strerror(errno);
    if (fd >= 0) ::close(fd);
    throw std::runtime_error("cannot listen on " + where + " for " + purpose + ": " + reason + "; set " +
                             setting);
  }
  return fd;
}

uint16_t bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
  return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

}  // namespace

Server::Server(const ServerOptions& options) : seats_(options.limits), budgets_(options.limits) {
  if (!options.tls.certificate.empty()) tls_ = std::make_unique<TlsContext>(options.tls);
  const unsigned loops = std::max(1u, options.loops);
  for (unsigned i = 0; i < loops; ++i) {
    loops_.push_back(std::make_unique<Loop>(options.limits, budgets_, loops, tls_.get(), [this] {
      const std::lock_guard lock(mutex_);
      drained_.notify_all();
    }));
  }
  listen_fd_ = open_listener(options, options.port, options.purpose, options.setting);
  port_ = bound_port(listen_fd_);
  if (options.rest_port < 0) return;
  rest_fd_ = open_listener(options, options.rest_port, "REST", "FUSED_MLP_REST_PORT");
  rest_port_ = bound_port(rest_fd_);
}

Server::~Server() {
  stop();
  if (listen_fd_ >= 0) ::close(listen_fd_);
  if (rest_fd_ >= 0) ::close(rest_fd_);
}

void Server::start(const MakeApplication& make_application) {
  for (auto& loop : loops_) loop->start(make_application(*loop));
  Loop& first = *loops_.front();
  first.listen(std::exchange(listen_fd_, -1), Speech::grpc, [this](int fd) { place(fd, Speech::grpc); });
  if (rest_fd_ < 0) return;
  first.listen(std::exchange(rest_fd_, -1), Speech::rest, [this](int fd) { place(fd, Speech::rest); });
}

// On the accepting loop's thread. To the loop with the fewest connections: a hash would often give one of two
// loops six of eight.
void Server::place(int fd, Speech speech) {
  Seats::Admission admission = seats_.admit(peer_address(fd));
  if (admission.seat == nullptr) return loops_.front()->turn_away(fd, admission.refusal);
  // The seat is given back with whatever holds this: the connection, or the task that was to make it.
  Seat* seat = admission.seat.get();
  std::shared_ptr<Seat> held(seat, [this, kept = std::move(admission.seat)](Seat*) { seats_.remove(kept); });
  const auto fewer = [](const auto& a, const auto& b) { return a->connections() < b->connections(); };
  seat->loop = std::min_element(loops_.begin(), loops_.end(), fewer)->get();
  // First: if it throws, the socket is still the caller's.
  if (admission.making_room != nullptr) make_room(std::move(admission.making_room));
  seat->loop->adopt(fd, std::move(held), speech);
}

void Server::make_room(std::shared_ptr<Seat> seat) {
  Loop& loop = *seat->loop;
  loop.run_soon([this, seat = std::move(seat)] {
    Connection* connection = seat->connection;
    if (connection == nullptr) return;
    connection->idle() ? connection->give_way() : seats_.keep(*seat);
  });
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
