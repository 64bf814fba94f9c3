// SPDX-License-Identifier: Apache-2.0
// Owns one socket, from the accept to the end of its connection.
#pragma once

#include <unistd.h>

#include <utility>

namespace fused_mlp::front {

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace fused_mlp::front
