#include "front/transport.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

namespace fused_mlp::front {
namespace {

constexpr unsigned char kAlpn[] = {2, 'h', '2'};

// gRPC over TLS is HTTP/2 by ALPN: a client that offers only something else is turned away in the handshake.
int choose_alpn(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* offered,
                unsigned offered_size, void*) {
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, kAlpn, sizeof kAlpn, offered, offered_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

[[noreturn]] void fail(SSL_CTX* context, const std::string& what) {
  char reason[256] = "";
  ERR_error_string_n(ERR_get_error(), reason, sizeof reason);
  ERR_clear_error();
  SSL_CTX_free(context);
  throw std::runtime_error(what + ": " + reason);
}

}  // namespace

TlsContext::TlsContext(const TlsFiles& files) : context_(SSL_CTX_new(TLS_server_method())) {
  if (context_ == nullptr) fail(nullptr, "TLS");
  SSL_CTX_set_min_proto_version(context_, TLS1_2_VERSION);
  SSL_CTX_set_options(context_,
                      SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(context_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                 SSL_MODE_RELEASE_BUFFERS);
  // The ciphers of TLS 1.2 that HTTP/2 allows (RFC 9113, 9.2.2); those of 1.3 all are.
  SSL_CTX_set_cipher_list(context_, "ECDHE+AESGCM:ECDHE+CHACHA20");
  SSL_CTX_set_alpn_select_cb(context_, choose_alpn, nullptr);
  if (SSL_CTX_use_certificate_chain_file(context_, files.certificate.c_str()) != 1) {
    fail(context_, "TLS certificate " + files.certificate);
  }
  if (SSL_CTX_use_PrivateKey_file(context_, files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    fail(context_, "TLS key " + files.key);
  }
  if (SSL_CTX_check_private_key(context_) != 1) {
    fail(context_, "TLS key " + files.key + " does not belong to certificate " + files.certificate);
  }
  if (!files.client_ca.empty()) {
    if (SSL_CTX_load_verify_locations(context_, files.client_ca.c_str(), nullptr) != 1) {
      fail(context_, "TLS client CA " + files.client_ca);
    }
    SSL_CTX_set_client_CA_list(context_, SSL_load_client_CA_file(files.client_ca.c_str()));
    SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    // A resumed session carries the identity checked before; it must not be usable with another service.
    constexpr unsigned char kSessionContext[] = "fused-mlp";
    SSL_CTX_set_session_id_context(context_, kSessionContext, sizeof kSessionContext - 1);
  }
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

Transport::Transport(int fd, const TlsContext* tls) : fd_(fd) {
  if (tls == nullptr) return;
  ssl_ = SSL_new(tls->get());
  if (ssl_ == nullptr) throw std::bad_alloc();
  SSL_set_fd(ssl_, fd_);
  SSL_set_accept_state(ssl_);
  shaking_hands_ = true;
}

Transport::~Transport() {
  if (ssl_ != nullptr) {
    if (!shaking_hands_) SSL_shutdown(ssl_);
    ERR_clear_error();
    SSL_free(ssl_);
  }
  ::close(fd_);
}

Io Transport::after_error(int result) {
  const int error = SSL_get_error(ssl_, result);
  wants_write_ = error == SSL_ERROR_WANT_WRITE;
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return Io::blocked;
  ERR_clear_error();
  return Io::closed;
}

Io Transport::handshake() {
  if (const int result = SSL_do_handshake(ssl_); result != 1) return after_error(result);
  wants_write_ = false;
  const unsigned char* protocol = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(ssl_, &protocol, &size);
  if (size != 2) return Io::closed;  // no ALPN at all: not a client of HTTP/2
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
  const ssize_t n = ::recv(fd_, place, size, 0);
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
  const ssize_t n = ::send(fd_, data, size, MSG_NOSIGNAL);
  if (n >= 0) return {Io::done, static_cast<size_t>(n)};
  if (errno == EAGAIN || errno == EINTR) return {Io::blocked};
  return {Io::closed};
}

bool Transport::has_pending() const { return ssl_ != nullptr && SSL_has_pending(ssl_) == 1; }

}  // namespace fused_mlp::front
