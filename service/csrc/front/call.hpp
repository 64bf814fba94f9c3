// One gRPC call: a stream of HTTP/2, its request messages on the way in and its answer on the way out; and
// the interface of whoever answers. Everything here happens on the thread of the loop that owns the
// connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "front/buffer.hpp"
#include "front/code.hpp"
#include "front/message.hpp"
#include "front/patience.hpp"
#include "front/request_head.hpp"

namespace fused_mlp::front {

class Call;
class Connection;
class Loop;

// Answers the calls of one RPC.
class Method {
 public:
  virtual ~Method() = default;
  // False: one message, handed over when the caller has closed its side. True: each as it comes.
  virtual bool client_streams() const = 0;
  // Of one request message, where that is less than the front's own limit.
  virtual size_t max_message_bytes() const { return SIZE_MAX; }
  virtual bool wants_metadata() const { return false; }
  virtual void on_start(Call&) {}
  virtual void on_message(Call&, Message&&) = 0;
  virtual void on_half_close(Call&) {}
  // No more answers are possible: the caller cancelled, or its connection is lost. Not called after finish().
  virtual void on_cancel(Call&) {}
  // The front itself ended the call (broken framing, a limit, the deadline), after on_start or instead of it.
  virtual void on_refuse(Call&, int /*code*/) {}
  // Some of the answer has been taken by the peer.
  virtual void on_sent(Call&) {}
};

// What a loop serves. One per loop.
class Application {
 public:
  virtual ~Application() = default;
  virtual Method* find(std::string_view path) = 0;
  // Everything that had arrived has been handed over; now is the time to compute. True: call again.
  virtual bool work() { return false; }
  // Between rounds, at least once a second.
  virtual void tick() {}
  // Nothing it has submitted is still out.
  virtual bool idle() const { return true; }
};

class Call {
 public:
  // For methods:
  Loop& loop() const { return *loop_; }
  RequestHead& head() { return head_; }
  int64_t arrival_ns() const { return arrival_ns_; }
  int64_t deadline_ns() const { return deadline_ns_; }  // 0: none
  bool open() const { return connection_ != nullptr && !finished_; }
  // No more messages will be handed over.
  bool half_closed() const { return half_closed_ && held_messages_ == 0; }
  size_t unsent_bytes() const { return out_.size(); }
  std::string peer() const;

  // Adds one message to the answer and returns where its `size` bytes go. Nothing is sent before flush or
  // finish.
  uint8_t* add_message(size_t size);
  // The same for a message with its prefix in place; takes the bytes over when it can.
  void add_framed(Buffer& framed);
  void flush();
  void finish(int code = kOk, std::string_view text = {}, const Metadata& trailers = {});
  // Flow control of streaming callers: each message handed over is `taken` until `done`.
  void message_done();

  // A pinned call stays valid (but maybe not open) until it is unpinned.
  void pin() { ++pins_; }
  void unpin();

  // For the method that answers the call.
  void* attachment = nullptr;
  uint64_t number = 0;

 private:
  friend class CallPool;
  friend class Connection;
  friend struct SessionCallbacks;
  explicit Call(Loop* loop) : loop_(loop) {}
  void reset();

  Loop* loop_;
  Connection* connection_ = nullptr;  // null: the stream is closed
  Call* previous_ = nullptr;          // the open calls of the connection
  Call* next_ = nullptr;
  int32_t stream_id_ = 0;
  uint32_t pins_ = 0;
  uint32_t messages_in_flight_ = 0;
  uint32_t held_messages_ = 0;  // not handed over yet: see Connection::hand_over
  bool half_closed_ = false, started_ = false, finished_ = false, has_message_ = false, has_trailers_ = false;
  bool answered_early_ = false;  // to the end, before the caller had come to the end of its request
  int64_t arrival_ns_ = 0, deadline_ns_ = 0;
  int64_t waiting_since_ns_ = 0;  // for the rest of a message; 0: not waiting
  Patience unsent_;               // how long the answer has been waiting for the peer
  size_t parked_bytes_ = 0;       // what of out_ its connection has counted
  size_t withheld_bytes_ = 0;     // of the stream's window, until the method has caught up
  RequestHead head_;
  std::optional<Rejection> rejection_;  // what the call will be told instead of being answered
  MessageReader reader_;
  Message message_;  // of a unary call, until its half-close
  Buffer out_;
  int code_ = kOk;
  std::string text_;
  Metadata trailers_;
};

// Calls are recycled with the memory of their buffers.
class CallPool {
 public:
  explicit CallPool(Loop* loop) : loop_(loop) {}
  ~CallPool();
  CallPool(const CallPool&) = delete;
  CallPool& operator=(const CallPool&) = delete;
  Call* take();
  void give_back(Call* call);

 private:
  static constexpr size_t kKept = 1024;
  Loop* loop_;
  std::vector<Call*> free_;
};

}  // namespace fused_mlp::front
