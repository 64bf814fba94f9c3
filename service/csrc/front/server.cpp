#include "front/server.hpp"

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

int open_listener(const std::string& host, uint16_t port) {
  const std::string where = host + ":" + std::to_string(port);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) throw std::runtime_error("cannot listen on " + where + ": " + ::gai_strerror(error));
  const std::unique_ptr<addrinfo, AddressDeleter> address(found);
  const int fd = ::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (fd >= 0) ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (fd < 0 || ::bind(fd, address->ai_addr, address->ai_addrlen) != 0 || ::listen(fd, kBacklog) != 0) {
    const std::string reason = std::strerror(errno);
    if (fd >= 0) ::close(fd);
    throw std::runtime_error("cannot listen on " + where + " for gRPC: " + reason +
                             "; set FUSED_MLP_GRPC_PORT");
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

Server::Server(const ServerOptions& options) : max_connections_(options.limits.max_connections) {
  if (!options.tls.certificate.empty()) tls_ = std::make_unique<TlsContext>(options.tls);
  const unsigned loops = std::max(1u, options.loops);
  Limits limits = options.limits;
  limits.max_buffered_bytes /= loops;  // each loop has an account of its own, without locks
  for (unsigned i = 0; i < loops; ++i) {
    loops_.push_back(std::make_unique<Loop>(limits, tls_.get(), [this] {
      const std::lock_guard lock(mutex_);
      drained_.notify_all();
    }));
  }
  listen_fd_ = open_listener(options.host, options.port);
  port_ = bound_port(listen_fd_);
}

Server::~Server() {
  stop();
  if (listen_fd_ >= 0) ::close(listen_fd_);
}

void Server::start(const MakeApplication& make_application) {
  for (auto& loop : loops_) loop->start(make_application(*loop));
  loops_.front()->listen(std::exchange(listen_fd_, -1), [this](int fd) { place(fd); });
}

// On the accepting loop's thread. To the loop with the fewest connections: a hash would often give one of two
// loops six of eight.
void Server::place(int fd) {
  uint64_t total = 0;
  Loop* least = loops_.front().get();
  for (auto& loop : loops_) {
    total += loop->connections();
    if (loop->connections() < least->connections()) least = loop.get();
  }
  if (total >= max_connections_) {
    ::close(fd);
    loops_.front()->stats().count_end(End::refused);
    return;
  }
  least->adopt(fd);
}

void Server::begin_drain() {
  for (auto& loop : loops_) loop->begin_drain();
}

bool Server::wait_drained(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  return drained_.wait_for(lock, timeout, [this] {
    return std::all_of(loops_.begin(), loops_.end(),
                       [](const auto& loop) { return loop->connections() == 0; });
  });
}

void Server::stop() {
  for (auto& loop : loops_) loop->stop();
}

}  // namespace fused_mlp::front
