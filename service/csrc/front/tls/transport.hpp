// SPDX-License-Identifier: Apache-2.0
// Bytes in and out of one socket, plain or through TLS. Never blocks. Loop thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "front/http2/end.hpp"
#include "front/tls/socket.hpp"
#include "front/tls/tls_context.hpp"

struct ssl_st;

namespace fused_mlp::front {

enum class Io : uint8_t { done, blocked, closed };

struct IoResult {
  Io state;
  size_t bytes = 0;
};

// The address and port of the other side of a socket, for the log.
std::string peer_name(int fd);
// Its address alone, IPv4 as ::ffff:1.2.3.4; zeros if it has gone.
std::array<uint8_t, 16> ip_address_of(int fd);

class Transport {
 public:
  // `http1`: HTTP/1.1 is spoken too, so that ALPN may choose it or be absent.
  Transport(Socket socket, const TlsContext* tls, bool http1 = false);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int fd() const { return socket_.fd(); }
  bool shaking_hands() const { return shaking_hands_; }
  // done: the handshake is over. blocked: call again when the socket is readable, or writable if
  // wants_write().
  Io handshake();
  TlsFailure handshake_failure() const { return failure_; }  // after handshake() returned closed
  bool speaks_http2() const { return http2_; }               // by ALPN, after the handshake
  bool wants_write() const { return wants_write_; }
  // done: `bytes` were read; more may be waiting when they fill `size`.
  IoResult read(uint8_t* place, size_t size);
  IoResult write(const uint8_t* data, size_t size);
  // TLS has read bytes ahead: the socket will not report them.
  bool has_pending() const;
  // Names in the peer's verified certificate; empty without one.
  std::vector<std::string> certificate_names() const;
  // Nothing more will be written. The peer reads what was sent, and then the end.
  void finish_writing();
  // Drops what the peer still sends, without looking at it. `place` is scratch space.
  IoResult discard(uint8_t* place, size_t size);

 private:
  Io after_error(int result);

  const Socket socket_;
  ssl_st* ssl_ = nullptr;
  bool shaking_hands_ = false, http1_ = false, http2_ = false;
  bool wants_write_ = false;
  bool writing_finished_ = false;
  TlsFailure failure_ = TlsFailure::closed;
};

}  // namespace fused_mlp::front
