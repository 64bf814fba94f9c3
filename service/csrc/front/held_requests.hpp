// Back-pressure on a peer whose HTTP/2 windows are shut. Its answers are parked in their calls; when they
// reach the limit, its further requests are held here, as messages that are accounted for, and are not
// computed. Frames are read all the same: those that open the windows are among them. One per connection.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "front/message.hpp"

namespace fused_mlp::front {

class HeldRequests {
 public:
  struct Held {
    int32_t stream_id;
    Message message;
  };

  explicit HeldRequests(size_t most_parked_bytes) : most_parked_bytes_(most_parked_bytes) {}

  // A call's answer has grown or shrunk.
  void change_parked(size_t before, size_t after) { parked_bytes_ += after - before; }
  bool must_hold() const { return parked_bytes_ >= most_parked_bytes_; }
  // Something waits (a message, or the window of a streaming caller) and need not wait any longer.
  bool can_continue() const { return waiting_ && !must_hold(); }

  void hold(int32_t stream_id, Message&& message) {
    held_.push_back({stream_id, std::move(message)});
    waiting_ = true;
  }
  void hold_window() { waiting_ = true; }
  bool empty() const { return held_.empty(); }
  Held take_first() {
    Held first = std::move(held_.front());
    held_.pop_front();
    return first;
  }
  std::deque<Held> take_all() { return std::exchange(held_, {}); }
  void remove(int32_t stream_id) {
    std::erase_if(held_, [stream_id](const Held& held) { return held.stream_id == stream_id; });
  }
  void all_released() { waiting_ = false; }

 private:
  const size_t most_parked_bytes_;
  size_t parked_bytes_ = 0;
  std::deque<Held> held_;  // in the order they came
  bool waiting_ = false;
};

}  // namespace fused_mlp::front
