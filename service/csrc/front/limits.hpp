// SPDX-License-Identifier: Apache-2.0
// Every limit of the native front, with its default. Plain data: read by all loops, constant after start, but
// for the size of messages, which may grow (account.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fused_mlp::front {

struct Limits {
  // Limits of one peer
  size_t max_message_bytes = 4u << 20;     // one gRPC message, after decompression
  size_t max_header_bytes = 16u << 10;     // one request's header list, as HPACK counts it
  uint32_t max_concurrent_streams = 1024;  // calls open on one connection
  uint32_t max_stream_messages = 256;      // messages of one streaming call that are being answered
  size_t max_output_bytes = 1u << 20;  // for one connection and not yet taken by its peer: see HeldRequests
  uint32_t max_control_calls = 256;    // calls of one connection that Python answers

  // Limits of all peers together
  uint32_t max_connections = 1024;
  uint32_t max_connections_per_peer = 0;       // by address; 0: half of max_connections
  size_t max_buffered_bytes = 512u << 20;      // bytes of requests that wait: see account.hpp
  size_t max_total_output_bytes = 256u << 20;  // max_output_bytes, over all connections
  size_t max_call_bytes = 128u << 20;          // open calls and their headers
  size_t max_control_bytes = 64u << 20;        // calls that Python answers, with its own end of them

  // How often one connection may send what is cheap for the peer and not for us, beyond what comes with calls
  // (flood_guard.hpp)
  uint32_t max_resets_per_s = 500;  // early ones, if they are most of its calls
  uint32_t max_pings_per_s = 100;
  uint32_t max_settings_per_s = 20;
  uint32_t max_control_frames_per_s = 1000;  // WINDOW_UPDATE, PRIORITY, empty DATA and the like

  // How long things may take, in seconds; 0 switches the limit off
  double handshake_timeout_s = 10;       // TLS and the first SETTINGS
  double receive_timeout_s = 20;         // the rest of a message that has begun
  double send_timeout_s = 20;            // a peer not taking what waits for it (stall_timer.hpp)
  double keepalive_s = 60;               // silence after which the peer is pinged
  double keepalive_timeout_s = 20;       // silence after that ping
  double idle_timeout_s = 3600;          // a connection without calls
  double first_message_timeout_s = 300;  // the first message of a stream of predictions
  double control_idle_timeout_s = 300;   // a stream of reflection without a request
  double max_connection_age_s = 0;       // then GOAWAY; streams finish
};

// Whether a limit of `limit_s` seconds has passed. `since_ns` 0: the timer is not running.
inline bool elapsed(int64_t since_ns, double limit_s, int64_t now_ns) {
  return limit_s > 0 && since_ns != 0 && now_ns - since_ns > static_cast<int64_t>(limit_s * 1e9);
}

struct TlsFiles {
  std::string certificate;  // PEM chain; empty: plaintext
  std::string key;
  std::string client_ca;  // when set, clients must present a certificate it signed
  std::string crl;        // PEM revocation lists of those authorities
};

}  // namespace fused_mlp::front
