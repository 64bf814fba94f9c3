// Rate-limit frames that are cheap to send. One per connection.
#pragma once

#include <nghttp2/nghttp2.h>

#include <cstdint>

#include "front/limits.hpp"
#include "front/rate.hpp"

namespace fused_mlp::front {

// Each function counts one frame; false: more than its limit in this second, and the connection must end.
class FloodGuard {
 public:
  explicit FloodGuard(const Limits& limits) : limits_(limits) {}

  // A frame that has arrived whole. Every WINDOW_UPDATE passes: see opens_little.
  bool allow(const nghttp2_frame& frame, int64_t now_ns) {
    switch (frame.hd.type) {
      case NGHTTP2_DATA:
        return frame.hd.length != 0 || (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) != 0 ||
               allow_control_frame(now_ns);
      case NGHTTP2_RST_STREAM:
        return allow_reset(now_ns);
      case NGHTTP2_PING:
        return pings_.allow(now_ns, limits_.max_pings_per_s);
      case NGHTTP2_SETTINGS:
        return settings_.allow(now_ns, limits_.max_settings_per_s);
      default:
        return true;
    }
  }
  // Received, or provoked from us: a peer must not gain by making us send the reset.
  bool allow_reset(int64_t now_ns) { return resets_.allow(now_ns, limits_.max_resets_per_s); }
  bool allow_control_frame(int64_t now_ns) {
    return control_frames_.allow(now_ns, limits_.max_control_frames_per_s);
  }

  // A WINDOW_UPDATE of a stream so small that it is counted as a control frame if an answer waits for it.
  // Those of the connection, and of streams without output, come with every call of grpcio.
  static bool opens_little(const nghttp2_frame& frame) {
    constexpr int32_t kLittle = 1024;
    return frame.hd.type == NGHTTP2_WINDOW_UPDATE && frame.hd.stream_id != 0 &&
           frame.window_update.window_size_increment < kLittle;
  }
  // Types that nghttp2 drops by itself: only their header is seen.
  static bool is_dropped(const nghttp2_frame_hd& header) {
    return header.type == NGHTTP2_PRIORITY || header.type > NGHTTP2_CONTINUATION;
  }

 private:
  const Limits& limits_;
  Rate resets_, pings_, settings_, control_frames_;
};

}  // namespace fused_mlp::front
