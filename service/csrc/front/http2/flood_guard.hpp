// SPDX-License-Identifier: Apache-2.0
// Bounds the frames that a peer can send for less than they cost us. Useful frames earn a share of cheap
// ones, as in Envoy; what is not earned is held to a rate, so that only a connection without calls can exceed
// it. One per connection.
#pragma once

#include <nghttp2/nghttp2.h>

#include <cstdint>
#include <optional>

#include "front/http2/end.hpp"
#include "front/limits.hpp"

namespace fused_mlp::front {

inline constexpr int64_t kSecond = 1'000'000'000;  // in nanoseconds

// How often something may happen in one second. A window that restarts: cheap, and exact enough for floods.
class Rate {
 public:
  // Counts one; false: more than `limit` in this second.
  bool allow(int64_t now_ns, uint32_t limit) {
    if (now_ns - since_ns_ >= kSecond) {
      since_ns_ = now_ns;
      count_ = 0;
    }
    return ++count_ <= limit;
  }

 private:
  int64_t since_ns_ = 0;
  uint32_t count_ = 0;
};

class FloodGuard {
 public:
  explicit FloodGuard(const Limits& limits) : limits_(limits) {}

  // ---- What earns. Only frames that a peer cannot have without a call: the count must not begin anew for
  // free. ----
  void on_stream_opened() {
    ++opened_;
    ++useful_;
  }
  void on_headers_sent() { ++useful_; }
  // `all`: nothing of the answer is left. Windows of a few bytes make us send many small frames: no use.
  void on_data_sent(size_t bytes, bool all) { useful_ += bytes / kUsefulBytes + (all ? 1 : 0); }

  // ---- What costs. Each counts one frame; a value: too many, and why the connection must end. ----

  // A frame that has arrived whole. `early`: a reset of a call that has cost us more than its caller
  // (Call::premature).
  std::optional<End> on_frame(const nghttp2_frame& frame, bool early, int64_t now_ns) {
    switch (frame.hd.type) {
      case NGHTTP2_DATA:
        if (frame.hd.length > frame.data.padlen || (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) break;
        return on_control_frame(now_ns);
      case NGHTTP2_RST_STREAM:
        return early ? on_early_reset(now_ns) : on_control_frame(now_ns);
      case NGHTTP2_PING:
        // grpc-go and grpc-java measure their bandwidth with a ping per DATA frame.
        if ((frame.hd.flags & NGHTTP2_FLAG_ACK) != 0) return on_control_frame(now_ns);
        return judge(pings_.take(useful_, now_ns, limits_.max_pings_per_s), End::pings);
      case NGHTTP2_SETTINGS:
        return judge(settings_.take(useful_ / kUsefulPerSettings, now_ns, limits_.max_settings_per_s),
                     End::settings);
      case NGHTTP2_WINDOW_UPDATE:
      case NGHTTP2_GOAWAY:
        return on_control_frame(now_ns);
      default:
        break;
    }
    return std::nullopt;
  }
  // PRIORITY: only its header is seen, nghttp2 drops it by itself.
  std::optional<End> on_frame_header(const nghttp2_frame_hd& header, int64_t now_ns) {
    return header.type == NGHTTP2_PRIORITY ? on_control_frame(now_ns) : std::nullopt;
  }
  // A frame of an unknown type, which nghttp2 ignores silently.
  std::optional<End> on_unknown_frame(int64_t now_ns) { return on_control_frame(now_ns); }
  // Received, or provoked from us: a peer must not gain by making us send the reset.
  std::optional<End> on_early_reset(int64_t now_ns) {
    if (now_ns - resets_since_ns_ >= kSecond) {
      resets_since_ns_ = now_ns;
      opened_before_ = opened_ - 1;  // not the one that is reset
      resets_ = 0;
    }
    ++resets_;
    return judge(resets_ <= limits_.max_resets_per_s || 2 * resets_ <= opened_ - opened_before_, End::resets);
  }

 private:
  // Frames of one kind: those that were earned, and `max_per_s` in a second besides.
  class Allowance {
   public:
    explicit Allowance(uint64_t max_saved) : max_saved_(max_saved) {}
    bool take(uint64_t earned, int64_t now_ns, uint32_t max_per_s) {
      if (earned - spent_ > max_saved_) spent_ = earned - max_saved_;
      if (spent_ == earned) return rate_.allow(now_ns, max_per_s);
      ++spent_;
      return true;
    }

   private:
    const uint64_t max_saved_;  // earned and not spent; more lapse
    uint64_t spent_ = 0;        // at most what was earned
    Rate rate_;
  };

  static constexpr size_t kUsefulBytes = 1024;
  static constexpr uint64_t kControlPerUseful =
      4;  // grpcio: up to 3 WINDOW_UPDATEs in a call of 4 useful frames
  static constexpr uint64_t kUsefulPerSettings = 64;  // SETTINGS may touch every open stream

  static std::optional<End> judge(bool allowed, End otherwise) {
    return allowed ? std::nullopt : std::optional(otherwise);
  }
  std::optional<End> on_control_frame(int64_t now_ns) {
    return judge(control_frames_.take(useful_ * kControlPerUseful, now_ns, limits_.max_control_frames_per_s),
                 End::control_frames);
  }

  const Limits& limits_;
  uint64_t useful_ = 0;
  Allowance pings_{500}, settings_{16}, control_frames_{1000};
  uint64_t opened_ = 0, opened_before_ = 0;  // streams; those before the second in which resets_ are counted
  uint64_t resets_ = 0;
  int64_t resets_since_ns_ = 0;
};

}  // namespace fused_mlp::front
