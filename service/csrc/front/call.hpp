// One gRPC call: the rules of gRPC on one stream of HTTP/2. Request messages come in, an answer and a status
// go out. Knows its connection as a place to send headers and data to. Loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "codec/byte_buffer.hpp"
#include "front/code.hpp"
#include "front/message.hpp"
#include "front/method.hpp"
#include "front/request_head.hpp"
#include "front/stall_timer.hpp"

namespace fused_mlp::front {

class Connection;
class Loop;

class Call {
 public:
  // ---- For the method that answers it ----
  Loop& loop() const { return *loop_; }
  RequestHead& head() { return head_; }
  int64_t arrival_ns() const { return arrival_ns_; }
  int64_t deadline_ns() const { return deadline_ns_; }  // 0: none
  bool open() const { return connection_ != nullptr && !finished_; }
  // No more messages will be handed over.
  bool half_closed() const { return half_closed_ && held_messages_ == 0; }
  size_t unsent_bytes() const { return out_.size(); }

  // Adds one message to the answer and returns where its `size` bytes go. Nothing is sent before flush or
  // finish.
  uint8_t* add_message(size_t size);
  // The same for a message with its prefix in place; takes the bytes over when it can.
  void add_framed(ByteBuffer& framed);
  void flush();
  void finish(int code = kOk, std::string_view text = {}, const Metadata& trailers = {});
  // Flow control of streaming callers: each message counts as in flight from on_message until this call.
  void message_done();

  // A pinned call stays valid (but maybe not open) until it is unpinned.
  void pin() { ++pins_; }
  void unpin();

  void* attachment = nullptr;
  uint64_t number = 0;

  // ---- For its connection, in the order of events ----
  void attach(Connection& connection, int32_t stream_id);
  void begin();  // the request's headers are complete
  void receive(const uint8_t* data, size_t size);
  void half_close();                     // the caller has closed its side
  void hand_over_held(Message message);  // a message that was held back: see held_requests.hpp
  void open_window();                    // lets a streaming caller send more, if it may
  void refuse(int code, std::string_view text) { refuse(200, code, text); }
  void sweep(int64_t now_ns);  // deadline, time limits
  void send_trailers();
  void take_answer(uint8_t* place, size_t size);  // moves the next `size` bytes of the answer there
  void on_answer_ended();                         // its last frame is on its way
  void on_more_data();                            // of a request that has been answered
  void detach();                                  // the stream is closed

  int32_t stream_id() const { return stream_id_; }
  bool finished() const { return finished_; }
  bool has_held_messages() const { return held_messages_ != 0; }
  bool window_withheld() const { return withheld_bytes_ != 0; }

 private:
  friend class CallList;
  friend class CallPool;
  explicit Call(Loop* loop) : loop_(loop) {}
  void reset();
  void reject();
  void hand_over(Message&& message);
  void refuse(int http_status, int code, std::string_view text);
  void refuse_read(ReadError error);
  size_t max_message_bytes() const;
  void send();
  void send_status_only(int http_status);
  void stop_request();
  void count_parked();

  Loop* loop_;
  Connection* connection_ = nullptr;  // null: the stream is closed
  Call* previous_ = nullptr;          // in the connection's CallList
  Call* next_ = nullptr;
  int32_t stream_id_ = 0;
  uint32_t pins_ = 0;
  uint32_t messages_in_flight_ = 0;
  uint32_t held_messages_ = 0;
  bool half_closed_ = false, started_ = false, finished_ = false, has_message_ = false, has_trailers_ = false;
  bool answered_early_ = false;  // the answer ended before the request did
  int64_t arrival_ns_ = 0, deadline_ns_ = 0;
  int64_t waiting_since_ns_ = 0;  // for the rest of a message; 0: not waiting
  StallTimer stall_;              // the answer waits for the peer
  size_t parked_bytes_ = 0;       // the part of out_ that is counted in HeldRequests
  size_t withheld_bytes_ = 0;     // of the stream's window, until the method has caught up
  RequestHead head_;
  std::optional<Rejection> rejection_;  // sent instead of an answer
  MessageReader reader_;
  Message message_;  // of a unary call, until its half-close
  ByteBuffer out_;
  int code_ = kOk;
  std::string text_;
  Metadata trailers_;
};

}  // namespace fused_mlp::front
