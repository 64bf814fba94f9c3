// SPDX-License-Identifier: Apache-2.0
// One gRPC call: the rules of gRPC on one stream of HTTP/2. Request messages come in, an answer and a status
// go out. Knows its connection as a place to send headers and data to. Loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codec/byte_buffer.hpp"
#include "front/grpc/code.hpp"
#include "front/grpc/message.hpp"
#include "front/grpc/method.hpp"
#include "front/grpc/request_head.hpp"
#include "front/http2/stall_timer.hpp"

namespace fused_mlp::front {

class Connection;
class Loop;

class Call {
 public:
  // ---- For the method that answers it ----
  Loop& loop() const { return *loop_; }
  PeerAccounts& accounts() const { return *accounts_; }  // while it is open or pinned
  RequestHead& head() { return head_; }
  std::vector<std::string> certificate_names() const;  // of the peer's certificate: see tls_context.hpp
  uint64_t peer() const { return peer_; }              // the same for all calls of a connection
  int64_t arrival_ns() const { return arrival_ns_; }
  int64_t deadline_ns() const { return deadline_ns_; }  // 0: none
  bool open() const { return connection_ != nullptr && !finished_; }
  // No more messages will be handed over.
  bool half_closed() const { return half_closed_ && !reading_ && !has_unread(); }
  size_t unsent_bytes() const { return out_.size(); }

  // Adds one message to the answer and returns where its `size` bytes go. Nothing is sent before flush or
  // finish.
  uint8_t* add_message(size_t size);
  // The same for a message with its prefix in place; takes the bytes over when it can.
  void add_framed(ByteBuffer& framed);
  void flush();
  void finish(int code = kOk, std::string_view text = {}, const Metadata& trailers = {});
  // After an exception: resets the stream, if there still is one. Its method hears of that as of a cancelled
  // call.
  void abort() noexcept;
  // Flow control of streaming callers: each message counts as in flight from on_message until this call.
  void message_done();
  // An answer of about so many bytes is being computed, until the same bytes are taken off again.
  void expect_answer(size_t bytes);
  void unexpect_answer(size_t bytes);
  // The method has taken the metadata out of head().
  void on_metadata_taken();
  // Python answers it, and keeps `bytes` for it. False: more than its connection may have.
  bool begin_control(size_t bytes, size_t most_bytes);

  // It is refused because `account` has no room: counted, and logged now and then.
  void report_shortage(Shortage account);

  // A pinned call stays valid (but maybe not open) until it is unpinned.
  void pin() { ++pins_; }
  void unpin();

  void* attachment = nullptr;
  uint64_t number = 0;

  // ---- For its connection, in the order of events ----
  // False: too many calls are open.
  bool attach(Connection& connection, int32_t stream_id);
  void begin();  // the request's headers are complete
  // Returns how many bytes it took: fewer than `size`, or unpacking(), when its connection's turn is over.
  size_t receive(const uint8_t* data, size_t size);
  bool unpacking() const { return !finished_ && unread_.empty() && reader_.unpacking(); }
  void half_close();        // the caller has closed its side
  void continue_reading();  // requests that were held back: see held_requests.hpp
  void open_window();       // lets a streaming caller send more, if it may
  void refuse(int code, std::string_view text) { refuse(200, code, text); }
  void sweep();  // deadline, time limits
  void send_trailers();
  void take_answer(uint8_t* place, size_t size);  // moves the next `size` bytes of the answer there
  void on_answer_ended();                         // its last frame is on its way
  void on_more_data();                            // of a request that has been answered
  void detach();                                  // the stream is closed

  // Reset by its caller now, it has cost us more than the caller: it is young, and nothing but a refusal was
  // on its way.
  bool premature(int64_t now_ns) const;
  // Its caller may have reset it because its deadline has passed: send_time.hpp.
  bool may_have_expired(int64_t now_ns) const;
  bool has_deadline() const { return deadline_ns_ != 0 && has_message_; }

  int32_t stream_id() const { return stream_id_; }
  bool finished() const { return finished_; }
  bool rejected() const { return rejection_.has_value(); }
  bool rest() const { return rest_; }
  // What it has charged, for the accounting check.
  size_t parked_bytes() const { return parked_.bytes(); }
  size_t memory_bytes() const { return memory_.bytes(); }
  size_t unread_bytes() const { return unread_charge_.bytes(); }

  // Its structures here and in nghttp2, the buffers it recycles, and the fields of its answer.
  static constexpr size_t kBytes = 2048;

 private:
  friend class CallList;
  friend class CallPool;
  friend class HeldRequests;
  struct Held {  // its place in HeldRequests
    Call* previous = nullptr;
    Call* next = nullptr;
    bool listed = false;
  };
  explicit Call(Loop* loop) : loop_(loop) {}
  void reset();
  void reject();
  bool has_unread() const { return !unread_.empty() || reader_.unpacking(); }
  bool read(const uint8_t*& data, size_t& size, SlabPool* slabs);
  bool must_wait() const;
  void keep_unread(const uint8_t* data, size_t size);
  void after_reading();
  void end_request();
  size_t receive_body(const uint8_t* data, size_t size);
  void end_body();
  void send_rest();
  void hand_over();
  void drop_request();
  void refuse(int http_status, int code, std::string_view text);
  void refuse_read(ReadError error);
  size_t max_message_bytes() const;
  std::string too_large_text() const;
  void send();
  void send_status_only(int http_status);
  void stop_request();
  void count_parked();

  Loop* loop_;
  Connection* connection_ = nullptr;  // null: the stream is closed
  PeerAccounts* accounts_ = nullptr;
  uint64_t peer_ = 0;
  Call* previous_ = nullptr;  // in the connection's CallList
  Call* next_ = nullptr;
  int32_t stream_id_ = 0;
  uint32_t pins_ = 0;
  uint32_t messages_in_flight_ = 0;
  uint32_t most_in_flight_ = 0;
  Held held_;
  bool reading_ = false;  // takes messages out of what was unread_
  bool half_closed_ = false, started_ = false, finished_ = false, has_message_ = false, has_trailers_ = false;
  bool refused_ = false;         // by the front, not by the method
  bool answered_early_ = false;  // the answer ended before the request did
  bool aborted_ = false;
  bool rest_ =
      false;  // came to the REST port: a body instead of messages, an HTTP status instead of trailers
  int http_status_ = 0;  // of a REST answer; 0: as its code says
  int64_t arrival_ns_ = 0, deadline_ns_ = 0;
  int64_t sent_after_ns_ = 0;     // by its caller; 0: unknown
  int64_t waiting_since_ns_ = 0;  // for the rest of a message; 0: not waiting
  int64_t idle_since_ns_ = 0;     // of a streaming call: without a message in flight
  StallTimer stall_;              // the answer waits for the peer
  Charge<PeerAccount> parked_;    // the memory of out_ while it holds something; counted in HeldRequests
  Charge<PeerAccount> memory_;    // of the call itself and its headers
  size_t expected_bytes_ = 0;     // of answers that are being computed; counted in HeldRequests
  size_t control_bytes_ = 0;      // counted in its connection
  size_t withheld_bytes_ = 0;     // of the stream's window, until the method has caught up
  RequestHead head_;
  std::optional<Rejection> rejection_;  // sent instead of an answer
  MessageReader reader_;
  Message message_;    // of a unary call, until it is handed over
  ByteBuffer unread_;  // of a streaming call, while its messages may not be handed over: bytes as they came
  Charge<PeerAccount> unread_charge_;
  ByteBuffer out_;
  int code_ = kOk;
  std::string text_;
  Metadata trailers_;
};

}  // namespace fused_mlp::front
