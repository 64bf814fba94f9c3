// Bytes in and out of one socket, plain or through TLS. Never blocks. Loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "front/limits.hpp"

struct ssl_ctx_st;
struct ssl_st;

namespace fused_mlp::front {

enum class Io : uint8_t { done, blocked, closed };

struct IoResult {
  Io state;
  size_t bytes = 0;
};

// Certificates, and the rules of the handshake. Shared by all loops; throws std::runtime_error in one line.
class TlsContext {
 public:
  explicit TlsContext(const TlsFiles& files);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  ssl_ctx_st* get() const { return context_; }

 private:
  ssl_ctx_st* context_;
};

class Transport {
 public:
  Transport(int fd, const TlsContext* tls);  // takes the socket over
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int fd() const { return fd_; }
  bool shaking_hands() const { return shaking_hands_; }
  // done: the handshake is over. blocked: call again when the socket is readable, or writable if
  // wants_write().
  Io handshake();
  bool wants_write() const { return wants_write_; }
  // done: `bytes` were read; more may be waiting when they fill `size`.
  IoResult read(uint8_t* place, size_t size);
  IoResult write(const uint8_t* data, size_t size);
  // TLS has read bytes ahead: the socket will not report them.
  bool has_pending() const;

 private:
  Io after_error(int result);

  int fd_;
  ssl_st* ssl_ = nullptr;
  bool shaking_hands_ = false;
  bool wants_write_ = false;
};

}  // namespace fused_mlp::front
