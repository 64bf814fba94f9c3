// SPDX-License-Identifier: Apache-2.0
#include "front/tls/transport.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace fused_mlp::front {
namespace {

// The class of the oldest error in OpenSSL's queue.
TlsFailure failure_of(unsigned long error) {
  if (error == 0) return TlsFailure::closed;
  switch (ERR_GET_REASON(error)) {
    case SSL_R_UNEXPECTED_EOF_WHILE_READING:
      return TlsFailure::closed;
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_WRONG_VERSION_NUMBER:
      return TlsFailure::not_tls;
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return TlsFailure::certificate;
    case SSL_R_NO_APPLICATION_PROTOCOL:
      return TlsFailure::alpn;
    default:
      return TlsFailure::other;
  }
}

}  // namespace

std::string peer_name(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char host[NI_MAXHOST], port[NI_MAXSERV];
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::getpeername(fd, generic, &size) != 0 ||
      ::getnameinfo(generic, size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) !=
          0) {
    return "a peer that has gone";
  }
  std::string name(host);
  if (address.ss_family == AF_INET6) name = '[' + name + ']';
  return name.append(":").append(port);
}

std::array<uint8_t, 16> ip_address_of(int fd) {
  std::array<uint8_t, 16> result{};
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return result;
  if (address.ss_family == AF_INET6) {
    std::memcpy(result.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, result.size());
  } else if (address.ss_family == AF_INET) {
    result[10] = result[11] = 0xff;
    std::memcpy(result.data() + 12, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
  }
  return result;
}

Transport::Transport(Socket socket, const TlsContext* tls, bool http1)
    : socket_(std::move(socket)), http1_(http1) {
  if (tls == nullptr) return;
  ssl_ = tls->open_session();
  SSL_set_fd(ssl_, fd());
  SSL_set_accept_state(ssl_);
  if (http1) SSL_set_app_data(ssl_, this);  // for choose_alpn
  shaking_hands_ = true;
}

Transport::~Transport() {
  if (ssl_ != nullptr) {
    finish_writing();
    SSL_free(ssl_);
  }
}

Io Transport::after_error(int result) {
  const int error = SSL_get_error(ssl_, result);
  wants_write_ = error == SSL_ERROR_WANT_WRITE;
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return Io::blocked;
  failure_ = failure_of(ERR_peek_error());
  ERR_clear_error();
  return Io::closed;
}

Io Transport::handshake() {
  if (const int result = SSL_do_handshake(ssl_); result != 1) return after_error(result);
  wants_write_ = false;
  const unsigned char* protocol = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(ssl_, &protocol, &size);
  http2_ = size == 2;
  if (!http2_ && !http1_) {  // no ALPN at all: not a client of HTTP/2
    failure_ = TlsFailure::alpn;
    return Io::closed;
  }
  shaking_hands_ = false;
  return Io::done;
}

IoResult Transport::read(uint8_t* place, size_t size) {
  if (ssl_ != nullptr) {
    size_t total = 0;
    while (total < size) {  // one call gives one TLS record at most
      const int n = SSL_read(ssl_, place + total, static_cast<int>(size - total));
      if (n <= 0) {
        const Io state = after_error(n);
        if (total == 0) return {state};
        break;
      }
      total += static_cast<size_t>(n);
    }
    return {Io::done, total};
  }
  const ssize_t n = ::recv(fd(), place, size, 0);
  if (n > 0) return {Io::done, static_cast<size_t>(n)};
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return {Io::blocked};
  return {Io::closed};
}

IoResult Transport::write(const uint8_t* data, size_t size) {
  if (ssl_ != nullptr) {
    const int n = SSL_write(ssl_, data, static_cast<int>(size));
    if (n > 0) return {Io::done, static_cast<size_t>(n)};
    return {after_error(n)};
  }
  const ssize_t n = ::send(fd(), data, size, MSG_NOSIGNAL);
  if (n >= 0) return {Io::done, static_cast<size_t>(n)};
  if (errno == EAGAIN || errno == EINTR) return {Io::blocked};
  return {Io::closed};
}

void Transport::finish_writing() {
  if (writing_finished_) return;
  writing_finished_ = true;
  if (ssl_ != nullptr && !shaking_hands_) {
    SSL_shutdown(ssl_);
    ERR_clear_error();
  }
  ::shutdown(fd(), SHUT_WR);
}

// Bytes of TLS are dropped as they are. Linux does not even copy bytes of TCP for MSG_TRUNC.
IoResult Transport::discard(uint8_t* place, size_t size) {
  const ssize_t n = ::recv(fd(), place, size, MSG_TRUNC);
  if (n > 0) return {Io::done, static_cast<size_t>(n)};
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return {Io::blocked};
  return {Io::closed};
}

bool Transport::has_pending() const { return ssl_ != nullptr && SSL_has_pending(ssl_) == 1; }

std::vector<std::string> Transport::certificate_names() const {
  return ssl_ == nullptr ? std::vector<std::string>() : front::certificate_names(ssl_);
}

}  // namespace fused_mlp::front
