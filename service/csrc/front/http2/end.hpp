// SPDX-License-Identifier: Apache-2.0
// Why connections end, TLS handshakes fail and calls are refused for memory: closed sets, because each is a
// label on /metrics. For some also the words for the peer and the log.
#pragma once

#include <nghttp2/nghttp2.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace fused_mlp::front {

enum class End : uint8_t {
  peer,  // the peer closed, or the network failed
  done,  // drained
  handshake,
  protocol,
  pings,
  resets,
  settings,
  control_frames,
  slow_reader,
  keepalive,
  refused,
  stopped,  // the server stopped
  headers,
  slow_headers,
  crowded_out,
  no_memory_left,  // in the accounts
  failed,          // on our side
};
inline constexpr size_t kEndCount = static_cast<size_t>(End::failed) + 1;

struct EndWords {
  const char* label;
  const char* reason;                 // for GOAWAY's debug data and the log; null: nothing went wrong
  uint32_t error = NGHTTP2_NO_ERROR;  // in GOAWAY
  const char* goaway_text = nullptr;  // where it must differ from `reason`
};

inline constexpr std::array<EndWords, kEndCount> kEnds = {{
    {"peer", nullptr},
    {"done", nullptr},
    {"handshake", "no HTTP/2 within handshake_timeout_s", NGHTTP2_SETTINGS_TIMEOUT},
    {"protocol", "broken HTTP/2", NGHTTP2_PROTOCOL_ERROR},
    // These very words make the clients of gRPC double their keepalive interval.
    {"pings", "more than max_pings_per_s pings without calls", NGHTTP2_ENHANCE_YOUR_CALM, "too_many_pings"},
    {"resets", "more than max_resets_per_s calls reset early, and most of its calls",
     NGHTTP2_ENHANCE_YOUR_CALM},
    {"settings", "more than max_settings_per_s SETTINGS frames", NGHTTP2_ENHANCE_YOUR_CALM},
    {"control_frames", "more than max_control_frames_per_s WINDOW_UPDATE, PRIORITY, empty or unknown frames",
     NGHTTP2_ENHANCE_YOUR_CALM},
    {"slow_reader", "answers not read within send_timeout_s"},
    {"keepalive", "no answer to a ping within keepalive_timeout_s"},
    {"refused", "more than max_connections connections"},
    {"stopped", nullptr},
    {"headers", "a header block of more than 4 times max_header_bytes", NGHTTP2_ENHANCE_YOUR_CALM},
    {"slow_headers", "headers not finished within receive_timeout_s", NGHTTP2_ENHANCE_YOUR_CALM},
    {"crowded_out", "idle, and another connection needed its place"},
    {"no_memory_left", "no room left in max_buffered_bytes", NGHTTP2_ENHANCE_YOUR_CALM},
    {"failed", "out of memory", NGHTTP2_INTERNAL_ERROR},
}};

inline constexpr const EndWords& words(End end) { return kEnds[static_cast<size_t>(end)]; }

// Why a TLS handshake failed.
enum class TlsFailure : uint8_t {
  closed,       // by the peer, or it took too long
  not_tls,      // the peer speaks something else
  certificate,  // ours was not accepted, or the peer's was missing or not accepted
  alpn,         // the peer does not offer h2
  other,        // no common version or cipher, broken records
};
inline constexpr size_t kTlsFailureCount = static_cast<size_t>(TlsFailure::other) + 1;
inline constexpr std::array<const char*, kTlsFailureCount> kTlsFailureNames = {
    "closed", "not_tls", "certificate", "alpn", "other"};

// The account that has no room for a call: peer_account.hpp.
enum class Shortage : uint8_t { requests, calls, control };
inline constexpr size_t kShortageCount = static_cast<size_t>(Shortage::control) + 1;
struct ShortageWords {
  const char* label;
  const char* reason;  // for the log
};
inline constexpr std::array<ShortageWords, kShortageCount> kShortages = {{
    {"requests", "no room left in max_buffered_bytes, or in its address's share of it"},
    {"calls", "no room left in max_call_bytes, or in its address's share of it"},
    {"control", "no room left in max_control_bytes, in its address's share of it, or in max_control_calls"},
}};

}  // namespace fused_mlp::front
