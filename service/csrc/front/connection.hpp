// One HTTP/2 connection: an nghttp2 session over a transport, and the calls on its streams. Knows nothing of
// gRPC beyond handing events to calls. Lives on one loop; touched by the loop's thread only.
#pragma once

#include <nghttp2/nghttp2.h>

#include <cstdint>

#include "front/connection_timers.hpp"
#include "front/flood_guard.hpp"
#include "front/http2_session.hpp"
#include "front/output_queue.hpp"
#include "front/stats.hpp"
#include "front/stream_table.hpp"
#include "front/transport.hpp"

namespace fused_mlp::front {

class Loop;

class Connection {
 public:
  Connection(Loop& loop, int fd, const TlsContext* tls);  // takes the socket over
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // ---- For the loop ----
  int fd() const { return transport_.fd(); }
  void on_readable();
  // Sends everything the session and the calls have ready. One system call when the socket takes it all.
  void write();
  // Deadlines, slow peers, keepalive, age.
  void sweep(int64_t now_ns);
  // No new calls; GOAWAY; closed when the last call is answered.
  void begin_drain();
  void close(End why);
  bool closed() const { return closed_; }
  uint32_t epoll_events() const;
  uint32_t epoll_events_set = 0;
  bool dirty = false;  // on the loop's list of connections to write

  // ---- For its calls ----
  Http2Session& session() { return session_; }
  void reset_stream(int32_t stream_id, uint32_t error);
  // The peer does not take the answer. Requests held behind it are refused, not computed.
  void reset_stalled_stream(int32_t stream_id);
  HeldRequests& held_requests() { return streams_.held(); }
  void mark_dirty();

 private:
  enum class Drain : uint8_t { no, noticed, final };

  void start_session();
  void receive(const uint8_t* data, size_t size);
  bool allowed(const nghttp2_frame& frame);
  void on_frame(const nghttp2_frame& frame);
  int end_for_flood();
  void visit_again_if_pending();
  void finish_drain();

  // Callbacks of nghttp2. All run inside nghttp2_session_mem_recv or nghttp2_session_send.
  static const nghttp2_session_callbacks* callbacks();
  static int on_begin_headers(nghttp2_session*, const nghttp2_frame*, void* self);
  static int on_header(nghttp2_session*, const nghttp2_frame*, const uint8_t* name, size_t name_size,
                       const uint8_t* value, size_t value_size, uint8_t flags, void* self);
  static int on_begin_frame(nghttp2_session*, const nghttp2_frame_hd*, void* self);
  static int on_data_chunk(nghttp2_session*, uint8_t flags, int32_t stream_id, const uint8_t* data,
                           size_t size, void* self);
  static int on_frame_received(nghttp2_session*, const nghttp2_frame*, void* self);
  static int on_stream_close(nghttp2_session*, int32_t stream_id, uint32_t error, void* self);
  static ssize_t send(nghttp2_session*, const uint8_t* data, size_t size, int flags, void* self);
  static int send_data(nghttp2_session*, nghttp2_frame*, const uint8_t* header, size_t size,
                       nghttp2_data_source* call, void* self);
  static int on_frame_sent(nghttp2_session*, const nghttp2_frame*, void* self);

  Loop& loop_;
  Transport transport_;
  OutputQueue out_;
  Http2Session session_;  // started after the TLS handshake
  StreamTable streams_;
  FloodGuard flood_;
  ConnectionTimers timers_;
  bool closed_ = false;
  bool flooded_ = false;
  bool peer_leaves_ = false;  // the peer sent GOAWAY
  Drain drain_ = Drain::no;
  int64_t drain_since_ns_ = 0;
};

}  // namespace fused_mlp::front
