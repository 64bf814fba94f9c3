// SPDX-License-Identifier: Apache-2.0
// The hand-off of calls to Python and back. Loops put events into one queue and signal an eventfd that
// Python's event loop watches; what Python sends goes to the loop that owns the call. No loop ever waits for
// the GIL.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "front/call/call.hpp"
#include "front/methods/fair_queue.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {

enum class EventKind : uint8_t {
  start,       // a call; a unary one with its only message
  message,     // of a streaming caller
  half_close,  // no more of them
  cancel,      // the caller has gone
  writable,    // everything sent so far has left the call's buffer
  failure,     // a prediction ended as INTERNAL: `path` is its id, `body` what to log
  bad_end,     // of a connection: `path` is its peer, `body` why
  shortage,    // a call was refused for lack of memory: the same
  wanted,      // a request waits for a model: `path` is its name, `body` the version
};

struct Event {
  explicit Event(EventKind kind, std::string body) : kind(kind), body(std::move(body)) {}
  Event(EventKind kind, const Call& call, std::string body = {})
      : kind(kind),
        call(call.number),
        address(reinterpret_cast<uintptr_t>(call.accounts().ledger.get())),
        connection(call.peer()),
        body(std::move(body)),
        charge(call.accounts().ledger) {}

  EventKind kind;
  uint64_t call = 0;
  // Events of addresses take turns, and of the connections of an address. 0: the server's own.
  uint64_t address = 0, connection = 0;
  std::string body;
  std::string path;
  Metadata metadata;
  std::vector<std::string> certificate_names;  // of the peer's certificate: no metadata can forge them
  std::string peer_address;
  int64_t deadline_ns = 0;
  ControlCharge charge;  // while it waits for Python

  size_t memory_bytes() const;
};

class BridgeCalls;

// Shared by all loops and Python. Thread-safe.
class Bridge {
 public:
  explicit Bridge(size_t max_bytes = Limits().max_control_bytes);
  ~Bridge();
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  // Python's side:
  int fileno() const { return event_fd_; }
  // Up to `most`, of each address in turn; fileno() stays readable while there are more.
  std::vector<Event> drain(size_t most = SIZE_MAX);
  // Python waits for `writable` before it sends another: one message of a call waits here at a time.
  void send(uint64_t call, std::string message);
  void finish(uint64_t call, int code, std::string text, Metadata trailers);
  // A message of a streaming caller was handled: the caller may send another.
  void message_done(uint64_t call);

  // The loops' side:
  Budget& budget() { return budget_; }
  // At most a few of each call.
  void push(Event&& event);
  // The same for events that a peer can cause in any number. False: too much waits for Python.
  bool offer(Event&& event);
  // A prediction ended as INTERNAL: logged under the id that its caller gets. `trace_id`: of the caller's
  // tracing system; may be empty.
  void on_failure(std::string_view request_id, std::string_view trace_id, std::string_view text);
  // A request waits for this version, which is loaded on demand.
  void request_load(std::string_view model, int64_t version);
  // One line in kBadEndInterval and reason goes to the log; it says how many were left out.
  void on_bad_end(End why, std::string_view peer, std::string_view reason, int64_t now_ns);
  void on_shortage(std::string_view peer, std::string_view reason);
  size_t attach(BridgeCalls& calls);  // before the loops start
  void detach(size_t index);

 private:
  static constexpr int64_t kBadEndInterval = 10'000'000'000;
  struct BadEnds {
    int64_t logged_ns = -kBadEndInterval;
    uint64_t left_out = 0;
  };

  template <class Action>
  void at_call(uint64_t call, Action action);

  Budget budget_;  // outlives the events
  int event_fd_;
  std::mutex mutex_;
  FairQueue<Event> events_;
  std::array<BadEnds, kEndCount> bad_ends_;
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
  // Charges for what Python keeps of a call. They go with the call, or, when that is cancelled, with the
  // event that says so.
  struct Kept {
    explicit Kept(const std::shared_ptr<PeerLedger>& ledger) : task(ledger), message(ledger) {}
    ControlCharge task;
    ControlCharge message;  // the one that its handler has
  };
  // False: no room for `event`, which starts it.
  bool add(Call& call, const Event& event);
  Kept remove(Call& call);
  Call* find(uint64_t number);
  Kept& kept(const Call& call) { return calls_.find(call.number)->second.kept; }

 private:
  struct Entry {
    Call* call;
    Kept kept;
  };

  Bridge& bridge_;
  Loop& loop_;
  size_t index_;
  uint64_t last_ = 0;
  std::unordered_map<uint64_t, Entry> calls_;
};

class BridgeMethod final : public Method {
 public:
  BridgeMethod(BridgeCalls& calls, bool client_streams) : calls_(calls), client_streams_(client_streams) {}
  bool client_streams() const override { return client_streams_; }
  bool wants_metadata() const override { return true; }
  // Python answers requests about models and the server: names, not tensors.
  size_t max_message_bytes() const override { return 64u << 10; }
  uint32_t max_in_flight() const override { return 1; }
  double idle_timeout_s(bool) const override { return calls_.loop().limits().control_idle_timeout_s; }
  void on_start(Call& call) override;
  void on_message(Call& call, Message&& message) override;
  void on_half_close(Call& call) override;
  void on_cancel(Call& call) override;
  void on_refuse(Call& call, int code) override;
  void on_sent(Call& call) override;

 private:
  void start(Call& call, std::string body);
  void refuse(Call& call);

  BridgeCalls& calls_;
  const bool client_streams_;
};

}  // namespace fused_mlp::front
