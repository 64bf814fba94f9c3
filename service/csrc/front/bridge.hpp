// The hand-off of calls to Python and back. Loops put events into one queue and signal an eventfd that
// Python's event loop watches; what Python sends goes to the loop that owns the call. No loop ever waits for
// the GIL.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "front/call.hpp"
#include "front/failure_log.hpp"
#include "front/loop.hpp"

namespace fused_mlp::front {

enum class EventKind : uint8_t {
  start,       // a call; a unary one with its only message
  message,     // of a streaming caller
  half_close,  // no more of them
  cancel,      // the caller has gone
  writable,    // everything sent so far has left the call's buffer
  failure,     // a prediction ended as INTERNAL: `path` is its id, `body` what to log
};

struct Event {
  explicit Event(EventKind kind, uint64_t call = 0, std::string body = {})
      : kind(kind), call(call), body(std::move(body)) {}

  EventKind kind;
  uint64_t call;
  std::string body;
  std::string path;
  Metadata metadata;
  int64_t deadline_ns = 0;

  size_t memory_bytes() const;  // roughly
};

class BridgeCalls;

// Shared by all loops and Python. Thread-safe.
class Bridge final : public FailureLog {
 public:
  Bridge();
  ~Bridge();
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  // Python's side:
  int fileno() const { return event_fd_; }
  std::vector<Event> drain();
  // Python waits for `writable` before it sends another: one message of a call waits here at a time.
  void send(uint64_t call, std::string message);
  void finish(uint64_t call, int code, std::string text, Metadata trailers);
  // A message of a streaming caller was handled: the caller may send another.
  void message_done(uint64_t call);

  // The loops' side:
  void push(Event&& event);
  // The same for events that a peer can cause in any number. False: more than `most_bytes` would wait for
  // Python.
  bool offer(Event&& event, size_t most_bytes);
  void on_failure(std::string_view request_id, std::string_view text) override;
  size_t attach(BridgeCalls& calls);  // before the loops start
  void detach(size_t index);

 private:
  template <class Action>
  void at_call(uint64_t call, Action action);
  void add(Event&& event, size_t bytes, std::unique_lock<std::mutex>& lock);

  int event_fd_;
  std::mutex mutex_;
  std::vector<Event> events_;
  size_t waiting_bytes_ = 0;  // of events_
  std::vector<BridgeCalls*> loops_;
};

// The calls of one loop that Python answers.
class BridgeCalls {
 public:
  BridgeCalls(Bridge& bridge, Loop& loop) : bridge_(bridge), loop_(loop), index_(bridge.attach(*this)) {}
  ~BridgeCalls() { bridge_.detach(index_); }
  BridgeCalls(const BridgeCalls&) = delete;
  BridgeCalls& operator=(const BridgeCalls&) = delete;

  Bridge& bridge() { return bridge_; }
  Loop& loop() { return loop_; }
  void add(Call& call);
  void remove(Call& call);
  Call* find(uint64_t number);

 private:
  Bridge& bridge_;
  Loop& loop_;
  size_t index_;
  uint64_t last_ = 0;
  std::unordered_map<uint64_t, Call*> calls_;
};

class BridgeMethod final : public Method {
 public:
  BridgeMethod(BridgeCalls& calls, bool client_streams) : calls_(calls), client_streams_(client_streams) {}
  bool client_streams() const override { return client_streams_; }
  bool wants_metadata() const override { return true; }
  // Python answers requests about models and the server: names, not tensors.
  size_t max_message_bytes() const override { return 64u << 10; }
  void on_start(Call& call) override;
  void on_message(Call& call, Message&& message) override;
  void on_half_close(Call& call) override;
  void on_cancel(Call& call) override;
  void on_refuse(Call& call, int code) override;
  void on_sent(Call& call) override;

 private:
  void start(Call& call, std::string body);
  void hand_over(Call& call, Event&& event);

  BridgeCalls& calls_;
  const bool client_streams_;
};

}  // namespace fused_mlp::front
