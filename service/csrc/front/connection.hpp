// One HTTP/2 connection: an nghttp2 session over a transport, its calls, and the limits that keep one peer
// from costing the others. Lives on one loop and is touched by its thread only.
#pragma once

#include <nghttp2/nghttp2.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "front/buffer.hpp"
#include "front/call.hpp"
#include "front/limits.hpp"
#include "front/patience.hpp"
#include "front/rate.hpp"
#include "front/stats.hpp"
#include "front/transport.hpp"

namespace fused_mlp::front {

class Loop;

class Connection {
 public:
  Connection(Loop& loop, int fd, const TlsContext* tls);  // takes the socket over
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // For the loop:
  int fd() const { return transport_.fd(); }
  void on_readable();
  // Writes what the session and the calls have to send. One system call when the socket takes it all.
  void write();
  // Deadlines, slow peers, keepalive, age.
  void sweep(int64_t now_ns);
  // No new calls; GOAWAY; closed when the last call is answered.
  void begin_drain();
  void close(End why);
  bool closed() const { return closed_; }
  uint32_t epoll_events() const;
  uint32_t epoll_events_set = 0;
  bool dirty = false;  // on the loop's list of those to write

  // For its calls:
  void answer(Call& call);
  void let_in(Call& call);
  std::string peer() const;  // as gRPC writes it: ipv4:127.0.0.1:4711

 private:
  friend struct SessionCallbacks;

  void start_session();
  void receive(const uint8_t* data, size_t size);
  void begin_call(Call& call);
  void reject(Call& call);
  void take_data(Call& call, const uint8_t* data, size_t size);
  void take_half_close(Call& call);
  void hand_over(Call& call, Message&& message);
  void hand_over_held();
  void refuse_held();
  void count_parked(Call& call);
  bool parked_full() const;
  bool can_go_on() const { return holds_back_ && !parked_full(); }
  void refuse(Call& call, int http_status, int code, std::string_view text);
  void refuse_read(Call& call, ReadError error);
  void submit_head_only(Call& call, int http_status);
  void submit_trailers(Call& call);
  void stop_request(Call& call);
  void end_call(Call& call);
  void mark_dirty();
  void visit_again_if_pending();
  bool output_full() const;
  void sweep_call(Call& call, int64_t now_ns);
  void finish_drain();
  Call* find(int32_t stream_id);

  Loop& loop_;
  Transport transport_;
  nghttp2_session* session_ = nullptr;
  Call* current_ = nullptr;  // whose frame is being received: saves looking it up for every header
  Call* calls_ = nullptr;    // the open ones
  uint32_t open_calls_ = 0;
  Buffer out_;               // serialised frames the socket has not taken
  size_t parked_bytes_ = 0;  // of the calls' answers, not in out_ because the peer's windows are shut
  struct Held {
    int32_t stream_id;
    Message message;
  };
  std::deque<Held> held_;    // requests that wait until less is parked, in the order they came
  bool holds_back_ = false;  // requests, or the window of streaming callers
  bool closed_ = false;
  bool started_ = false;  // the peer's SETTINGS have come
  bool flooded_ = false;
  bool peer_leaves_ = false;  // it has said GOAWAY
  enum class Drain : uint8_t { no, noticed, final } drain_ = Drain::no;

  int64_t born_ns_;
  int64_t age_limit_ns_ = 0;  // 0: none
  int64_t heard_ns_;          // last byte from the peer
  int64_t pinged_ns_ = 0;     // keepalive; 0: no ping is out
  int64_t idle_since_ns_;     // without calls
  int64_t drain_since_ns_ = 0;
  Patience unsent_;  // how long the socket has not taken what is in out_
  Rate resets_, pings_, settings_, control_frames_;
};

}  // namespace fused_mlp::front
