// SPDX-License-Identifier: Apache-2.0
// One connection: an nghttp2 session, or on the REST port perhaps HTTP/1.1 (rest/http1.hpp), over a
// transport, and the calls on its streams. Knows nothing of gRPC beyond handing events to calls. Lives on one
// loop; touched by the loop's thread only.
#pragma once

#include <nghttp2/nghttp2.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>

#include "front/access/loop_callers.hpp"
#include "front/http2/flood_guard.hpp"
#include "front/http2/frame_cursor.hpp"
#include "front/http2/http2_session.hpp"
#include "front/http2/stream_table.hpp"
#include "front/http2/timers.hpp"
#include "front/rest/http1.hpp"
#include "front/server/seats.hpp"
#include "front/stats.hpp"
#include "front/tls/transport.hpp"

namespace fused_mlp::front {

class Loop;

// Serialised frames that the socket has not taken yet.
class OutputQueue {
 public:
  OutputQueue(PeerAccount& answers, size_t max_bytes) : answers_(answers), max_bytes_(max_bytes) {}

  bool empty() const { return bytes_.empty(); }
  // High-water mark: nothing more is serialised or read until the socket has taken some.
  bool full() const { return !bytes_.empty() && reaches_max_output(bytes_.size(), answers_, max_bytes_); }
  uint8_t* extend(size_t size) { return bytes_.extend(size); }
  void append(const uint8_t* data, size_t size) { bytes_.append(data, size); }

  // One write to the socket.
  IoResult send(Transport& transport, int64_t now_ns) {
    const IoResult result = transport.write(bytes_.data(), bytes_.size());
    if (result.state == Io::blocked) stall_.start(now_ns);
    if (result.state == Io::done) {
      stall_.on_taken(result.bytes, result.bytes == bytes_.size(), now_ns);
      bytes_.consume(result.bytes);
    }
    return result;
  }
  // After the last write of a turn.
  void settle() {
    if (bytes_.empty()) bytes_.reset(kKeptBytes);
    used_ = true;
    charge();
  }
  // A queue that was not used since the last call keeps no memory.
  void sweep() {
    if (!used_ && bytes_.empty() && bytes_.capacity() != 0) {
      bytes_.reset(0);
      charge();
    }
    used_ = false;
  }
  size_t charged_bytes() const { return charge_.bytes(); }
  int64_t stalled_since_ns() const { return stall_.since_ns(); }  // 0: not stalled

 private:
  static constexpr size_t kKeptBytes = 64u << 10;
  void charge() {
    if (charge_.bytes() != bytes_.capacity()) charge_.resize_anyway(answers_, bytes_.capacity());
  }

  PeerAccount& answers_;
  const size_t max_bytes_;
  ByteBuffer bytes_;
  Charge<PeerAccount> charge_;
  bool used_ = false;
  StallTimer stall_;
};

// The open calls of a connection that Python answers.
struct ControlCalls {
  uint32_t count = 0;
  size_t bytes = 0;
  void remove(size_t call_bytes) {
    --count;
    bytes -= call_bytes;
  }
};

// The API of a port.
enum class Protocol : uint8_t { grpc, rest };

class Connection {
 public:
  // `seat` may be null (tests).
  Connection(Loop& loop, Socket socket, const TlsContext* tls, std::shared_ptr<Seat> seat,
             Protocol protocol = Protocol::grpc);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // ---- For the loop. What throws is ended by the loop with fail(). ----
  int fd() const { return transport_.fd(); }
  void on_readable();
  // Sends what the session and the calls have ready, up to a quota. One system call when the socket takes it
  // all.
  void write();
  // Deadlines, slow peers, keepalive, age.
  void sweep();
  // GOAWAY; calls that come before the peer has seen it are answered too; closed after the last.
  void begin_drain(const char* reason);
  void close(End why) noexcept { close(why, reason_of(why)); }
  // Ends it by our decision: GOAWAY with the reason.
  void go_away(End why);
  // Gone at once, for it has no calls: another peer needs its place.
  void give_way();
  // An exception came out of it: what it did is half done.
  void fail() noexcept;
  bool closed() const { return closed_; }
  bool idle() const { return streams_.empty(); }
  uint32_t epoll_events() const;
  uint32_t epoll_events_set = 0;
  bool dirty = false;    // on the loop's list of connections to write
  bool waiting = false;  // on the loop's list of connections to visit again
  int64_t spent_ns = 0;  // of the loop's time, lately

  // ---- For its calls ----
  PeerAccounts& accounts() { return accounts_; }
  Http2Session& session() { return session_; }
  bool rest() const { return protocol_ == Protocol::rest; }
  // The answer of a call on the REST port: its head, and the body that the call holds.
  void respond(Call& call, const AnswerHead& head);
  // Bytes of a request are dealt with.
  void consume(int32_t stream_id, size_t bytes) {
    if (http1_ == nullptr) session_.consume(stream_id, bytes);
  }
  const SendTime& send_time() const { return send_time_; }
  void reset_stream(int32_t stream_id, uint32_t error);
  // The peer does not take the answer. Requests held behind it are refused, not computed.
  void reset_stalled_stream(int32_t stream_id);
  std::vector<std::string> certificate_names() const { return transport_.certificate_names(); }
  HeldRequests& held_requests() { return streams_.held(); }
  uint64_t flow() const {
    return seat_ != nullptr ? seat_->ledger->flow(seat_->queue) : reinterpret_cast<uintptr_t>(this);
  }
  ControlCalls control_calls;
  ConnectionPeer peer;
  void mark_dirty();
  // Recomputes its charges; false: its counts are wrong. For the accounting check.
  bool count_memory(size_t& answers, size_t& calls) const;

 private:
  friend class Http1;
  // Past the limit, a request is refused in words when its headers have ended. Past this multiple it is
  // reset, and nghttp2 validates no more of them.
  static constexpr size_t kHeaderMultiple = 4;

  enum class Drain : uint8_t {
    no,
    asked,    // during the TLS handshake
    noticed,  // GOAWAY was announced
    due,      // the peer has seen that
    final,    // GOAWAY with the last call
  };

  static std::string_view reason_of(End why) {
    return words(why).reason == nullptr ? std::string_view() : words(why).reason;
  }

  // DATA that a call has not taken because the turn was over: the front of rest_.
  struct Chunk {
    int32_t stream_id = 0;  // 0: none
    size_t bytes = 0;
    size_t padding = 0;  // that follows it
    const uint8_t* end = nullptr;
  };

  void start_session();
  void start_http1();
  size_t choose_protocol(const uint8_t* data, size_t size);
  size_t process_http2(const uint8_t* data, size_t size);
  // A request of HTTP/1.1 is being answered, and what follows it waits.
  bool must_not_read() const { return http1_ != nullptr && http1_->busy() && !rest_.empty(); }
  void set_idle_since(int64_t now_ns);
  bool shake_hands();
  IoResult read(uint8_t* place, size_t room);
  size_t process(const uint8_t* data, size_t size);
  bool finish_chunk(const uint8_t*& data, const uint8_t* end);
  void end_broken(ssize_t error);
  // `reason`: for the log. `text`: for GOAWAY.
  void end_session(End why, uint32_t error, std::string_view reason, std::string_view text);
  int count_field(size_t name_size, size_t value_size);
  void on_frame(const nghttp2_frame& frame);
  bool is_early_reset(const Call& call);
  int stop_for(End why);
  bool has_rest() const { return paused_ || !rest_.empty(); }
  void keep_rest(const uint8_t* data, size_t size);
  void drop_rest(size_t size);
  void visit_again_if_pending();
  void finish_drain();
  // Ends all calls, and closes when the peer has read what was sent and closed its side too: to close with
  // bytes unread would reset the connection, and the peer would lose answers and GOAWAY.
  void leave(End why);
  void flush();
  void discard_input();
  void close(End why, std::string_view reason) noexcept;
  void report(End why, std::string_view reason);

  // Callbacks of nghttp2. All run inside nghttp2_session_mem_recv or nghttp2_session_send, through which no
  // exception may pass.
  template <class Action>
  static int guarded(void* self, Action action) noexcept {
    auto& connection = *static_cast<Connection*>(self);
    try {
      return action(connection);
    } catch (const std::exception&) {
      connection.failed_ = true;
      return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
  }
  static const nghttp2_session_callbacks* callbacks();
  static int on_begin_headers(nghttp2_session*, const nghttp2_frame*, void* self);
  static int on_header(nghttp2_session*, const nghttp2_frame*, const uint8_t* name, size_t name_size,
                       const uint8_t* value, size_t value_size, uint8_t flags, void* self);
  static int on_invalid_header(nghttp2_session*, const nghttp2_frame*, const uint8_t* name, size_t name_size,
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
  const Protocol protocol_;
  const std::shared_ptr<Seat> seat_;
  Transport transport_;
  PeerAccounts& accounts_;
  OutputQueue out_;
  Http2Session session_;  // started after the TLS handshake
  StreamTable streams_;
  std::unique_ptr<Http1> http1_;  // in the place of session_
  uint8_t preface_bytes_ = 0;     // of HTTP/2, seen before the protocol is known
  FloodGuard flood_;
  SendTime send_time_;
  uint32_t own_refusals_ = 0;  // streams that a budget of ours refused, not yet reset
  ConnectionTimers timers_;
  FrameCursor cursor_;
  ByteBuffer rest_;  // read from the socket, not processed in the last turn
  Charge<PeerAccount> rest_charge_;
  Chunk chunk_;
  size_t header_bytes_ = 0;  // of the header block that comes in
  bool paused_ = false;      // nghttp2 stopped before the end of its input
  bool closed_ = false;
  bool failed_ = false;  // an exception was stopped in a callback
  bool reported_ = false;
  std::optional<End> stopped_for_;  // nghttp2 was stopped in a callback; go_away is next
  std::optional<End> leaving_;
  int64_t leaving_since_ns_ = 0;
  size_t discarded_bytes_ = 0;
  Drain drain_ = Drain::no;
  const char* drain_reason_ = "";
  int64_t drain_since_ns_ = 0;
};

}  // namespace fused_mlp::front
