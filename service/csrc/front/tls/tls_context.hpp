// SPDX-License-Identifier: Apache-2.0
// Certificates and the rules of the TLS handshake, shared by all loops. Thread-safe: reload() swaps the
// OpenSSL context while other threads open sessions.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "front/limits.hpp"

struct ssl_ctx_st;
struct ssl_st;

namespace fused_mlp::front {

class TlsContext {
 public:
  explicit TlsContext(TlsFiles files);  // throws std::runtime_error in one line
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // Reads the files again, and makes new ticket keys. New connections use them; open ones go on as they are.
  // Throws when the files cannot be used, and keeps what it had.
  void reload();
  ssl_st* open_session() const;  // for one connection, which frees it; throws std::bad_alloc

 private:
  const TlsFiles files_;
  mutable std::mutex mutex_;
  ssl_ctx_st* context_;  // counted by OpenSSL: each session keeps the context it was opened with
};

// Names in the verified certificate of a peer: "CN:...", "DNS:..." and "URI:...". Empty without one.
std::vector<std::string> certificate_names(const ssl_st* session);

}  // namespace fused_mlp::front
