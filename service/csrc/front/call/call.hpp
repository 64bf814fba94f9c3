// SPDX-License-Identifier: Apache-2.0
// One call: a request comes in, an answer and a status go out. This base class holds what gRPC and REST
// share: limits, deadline, accounting, refusals. grpc/grpc_call.hpp and rest/rest_call.hpp read and write.
// Knows its connection as a place to send headers and data to. Loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "access/callers.hpp"
#include "codec/byte_buffer.hpp"
#include "front/call/code.hpp"
#include "front/call/message.hpp"
#include "front/call/method.hpp"
#include "front/call/request_head.hpp"
#include "front/http2/timers.hpp"

namespace fused_mlp::front {

class Call;
class Connection;
class Loop;

// The place of a call in a CallList.
struct CallLinks {
  Call* previous = nullptr;
  Call* next = nullptr;
  bool listed = false;
};

class Call {
 public:
  virtual ~Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // ---- For the method that answers it ----
  Loop& loop() const { return *loop_; }
  PeerAccounts& accounts() const { return *accounts_; }  // while it is open or pinned
  RequestHead& head() { return head_; }
  std::vector<std::string> certificate_names() const;  // of the peer's certificate: see tls_context.hpp
  uint64_t peer() const { return peer_; }              // the same for all calls of a connection
  uint64_t flow() const { return flow_; }              // the engine serves flows in turn
  uint64_t address() const;                            // the same for all connections of an address
  std::string peer_address() const;                    // "127.0.0.1:4711"; empty: the connection is gone
  int64_t arrival_ns() const { return arrival_ns_; }
  int64_t deadline_ns() const { return deadline_ns_; }  // 0: none
  bool open() const { return connection_ != nullptr && !finished_; }
  // No more messages will be handed over.
  virtual bool half_closed() const = 0;
  size_t unsent_bytes() const { return out_.size(); }

  // Adds one message to the answer and returns where its `size` bytes go. Nothing is sent before flush or
  // finish.
  virtual uint8_t* add_message(size_t size) = 0;
  // Adds a message with its prefix in place; takes the buffer over if it can.
  void add_framed(ByteBuffer& framed);
  void flush();
  void finish(int code = kOk, std::string_view text = {}, const Metadata& trailers = {});
  // After an exception: resets the stream if it is still open. The method is called as for a cancelled call.
  void abort() noexcept;
  // Flow control of streaming callers: each message counts as in flight from on_message until this call.
  virtual void message_done() {}
  // Charges an answer of about `bytes` while it is being computed, until unexpect_answer with the same bytes.
  void expect_answer(size_t bytes);
  void unexpect_answer(size_t bytes);
  // The method has taken the metadata out of head().
  void on_metadata_taken();
  // Python answers it, and keeps `bytes` for it. False: more than its connection may have.
  bool begin_control(size_t bytes, size_t max_bytes);

  // It is refused because `account` has no room: counted, and logged at a limited rate.
  void report_shortage(Shortage account);

  // A pinned call stays valid (but maybe not open) until it is unpinned.
  void pin() { ++pins_; }
  void unpin();

  // The caller that sent it: front/access/loop_callers.hpp.
  struct Identified {
    uint64_t generation = 0;  // of the rules
    CallerRef caller;         // null: unknown, or not asked for
  };
  Identified identified;
  const Caller* caller() const { return identified.caller.get(); }
  Connection* connection() const { return connection_; }  // null: it is gone

  void* attachment = nullptr;
  uint64_t number = 0;

  // ---- For its connection, in the order of events ----
  // False: too many calls are open.
  bool attach(Connection& connection, int32_t stream_id);
  void begin();  // the request's headers are complete
  // Returns how many bytes it took: fewer than `size`, or unpacking(), when its connection's turn is over.
  virtual size_t receive(const uint8_t* data, size_t size) = 0;
  virtual bool unpacking() const { return false; }
  void half_close();                    // the caller has closed its side
  virtual void continue_reading() = 0;  // requests that were held back: see HeldRequests
  virtual void open_window() {}         // lets a streaming caller send more, if it may
  void refuse(int code, std::string_view text) { refuse(200, code, text); }
  void sweep();                                   // deadline, time limits
  virtual bool send_trailers() = 0;               // false: the answer ends without
  void take_answer(uint8_t* place, size_t size);  // moves the next `size` bytes of the answer there
  void on_answer_ended();                         // its last frame is on its way
  void on_more_data();                            // of a request that has been answered
  void detach();                                  // the stream is closed
  virtual void recycle() = 0;                     // gives it back to its pool

  // A reset now would leave us with more cost than the caller: the call is young, and at most a refusal was
  // sent.
  bool premature(int64_t now_ns) const;
  // Its caller may have reset it because its deadline has passed: send_time.hpp.
  bool may_have_expired(int64_t now_ns) const;
  // Its caller has reset it now because its deadline has passed, as far as can be told.
  bool reset_at_deadline() const;
  bool has_deadline() const { return deadline_ns_ != 0 && has_message_; }

  int32_t stream_id() const { return stream_id_; }
  bool finished() const { return finished_; }
  bool rejected() const { return rejection_.has_value(); }
  // Charged bytes, for the accounting check.
  size_t parked_bytes() const { return parked_.bytes(); }
  size_t memory_bytes() const { return memory_.bytes(); }

  // Its structures here and in nghttp2, the buffers it recycles, and the fields of its answer.
  static constexpr size_t kBytes = 2048;

  CallLinks of_connection;  // in StreamTable
  CallLinks held;           // in HeldRequests

 protected:
  Call(Loop* loop, RequestHead& head) : loop_(loop), head_(head) {}
  // After the last byte of the request's headers, before its method starts.
  virtual void start_reading(const Method& method) = 0;
  virtual void end_request() = 0;  // all of the request was read
  // The HTTP status of an error that HTTP has a status for; 200 where the answer cannot say it.
  virtual int http_status(int status) const = 0;
  // Sends the answer as far as it is ready.
  virtual void send() = 0;
  // Nothing more of the request will be handed over.
  virtual void drop_request();
  void reset();
  void hand_over() { head_.method()->on_message(*this, std::move(message_)); }
  void refuse(int http_status, int code, std::string_view text);
  void refuse_read(ReadError error);
  void count_parked();

  Loop* const loop_;
  Connection* connection_ = nullptr;  // null: the stream is closed
  PeerAccounts* accounts_ = nullptr;
  RequestHead& head_;  // of the derived class
  int32_t stream_id_ = 0;
  int http_status_ = 0;  // of the answer; 0: as its code says
  bool half_closed_ = false, started_ = false, finished_ = false, has_message_ = false, has_trailers_ = false;
  bool refused_ = false;                // by the front, not by the method
  int64_t waiting_since_ns_ = 0;        // for the rest of a message; 0: not waiting
  int64_t idle_since_ns_ = 0;           // of a streaming call: without a message in flight
  StallTimer stall_;                    // the answer waits for the peer
  std::optional<Rejection> rejection_;  // sent instead of an answer
  MessageReader reader_;
  Message message_;  // of a unary call, until it is handed over
  ByteBuffer out_;
  int code_ = kOk;
  std::string text_;
  Metadata trailers_;

 private:
  void reject();
  size_t max_message_bytes() const;
  std::string too_large_text() const;
  void stop_request();

  uint64_t peer_ = 0, flow_ = 0;
  uint32_t pins_ = 0;
  bool answered_early_ = false;  // the answer ended before the request did
  bool aborted_ = false;
  int64_t arrival_ns_ = 0, deadline_ns_ = 0;
  int64_t sent_after_ns_ = 0;   // by its caller; 0: unknown
  Charge<PeerAccount> parked_;  // the memory of out_ while it holds something; counted in HeldRequests
  Charge<PeerAccount> memory_;  // of the call itself and its headers
  size_t expected_bytes_ = 0;   // of answers that are being computed; counted in HeldRequests
  size_t control_bytes_ = 0;    // counted in its connection
};

// A list of calls in the order in which they were added. It links them through their member kLinks.
template <CallLinks Call::*kLinks>
class CallList {
 public:
  bool empty() const { return first_ == nullptr; }
  size_t size() const { return size_; }
  Call* first() const { return first_; }
  static Call* next(const Call& call) { return (call.*kLinks).next; }

  // Adding a call that is listed, and removing one that is not, changes nothing.
  void add(Call& call) {
    if ((call.*kLinks).listed) return;
    call.*kLinks = {last_, nullptr, true};
    (last_ != nullptr ? (last_->*kLinks).next : first_) = &call;
    last_ = &call;
    ++size_;
  }
  void remove(Call& call) {
    const CallLinks links = std::exchange(call.*kLinks, {});
    if (!links.listed) return;
    (links.previous != nullptr ? (links.previous->*kLinks).next : first_) = links.next;
    (links.next != nullptr ? (links.next->*kLinks).previous : last_) = links.previous;
    --size_;
  }

 private:
  Call* first_ = nullptr;
  Call* last_ = nullptr;
  size_t size_ = 0;
};
using OpenCalls = CallList<&Call::of_connection>;

// Recycles the calls of one kind, with the memory of their buffers. One per loop.
template <class Kind>
class CallPool {
 public:
  explicit CallPool(Loop* loop) : loop_(loop) { free_.reserve(kKept); }
  Kind* take() {
    if (free_.empty()) return new Kind(loop_);
    Kind* call = free_.back().release();
    free_.pop_back();
    return call;
  }
  void give_back(Kind* call) noexcept {
    std::unique_ptr<Kind> owned(call);
    call->reset();  // before a delete too: it returns what the call holds of the loop's memory
    if (free_.size() < kKept) free_.push_back(std::move(owned));
  }

 private:
  static constexpr size_t kKept = 1024;  // some 2 KiB each
  Loop* loop_;
  std::vector<std::unique_ptr<Kind>> free_;
};

}  // namespace fused_mlp::front
