// SPDX-License-Identifier: Apache-2.0
// One event loop: a thread, an epoll set, and the connections it owns. Each round reads what has arrived,
// lets the application compute, and writes all answers: one batch and one write per connection, however many
// requests came. A round's reading is bounded in time; when that is not enough for all, those that cost least
// lately come first.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/clock.hpp"
#include "engine/ticket.hpp"
#include "front/call/message.hpp"
#include "front/call/method.hpp"
#include "front/grpc/grpc_call.hpp"
#include "front/http2/connection.hpp"
#include "front/limits.hpp"
#include "front/memory/peer_account.hpp"
#include "front/memory/session_memory.hpp"
#include "front/memory/slab.hpp"
#include "front/rest/rest_call.hpp"
#include "front/server/mailbox.hpp"
#include "front/server/turn.hpp"
#include "front/stats.hpp"

struct epoll_event;

namespace fused_mlp::front {

class Loop final : public CompletionSink {
 public:
  Loop(const Limits& limits, Budgets& budgets, unsigned loops, const TlsContext* tls,
       std::function<void()> on_connection_closed, const Clock& clock = steady_clock());
  ~Loop();  // stop() must have been called if start() was

  // For tests that drive a loop by hand, without a thread: what it serves, then one round after the other.
  void serve_here(std::unique_ptr<Application> application);
  void round(int timeout_ms);

  // From any thread:
  void start(std::unique_ptr<Application> application);
  void post(Delivery* delivery) noexcept { mailbox_.post(delivery); }
  void flush() noexcept override;  // wakes the loop, unless it is the one calling
  void run_soon(std::function<void()> task) { mailbox_.run_soon(std::move(task)); }
  // A new connection. Takes the socket over unless it throws.
  void adopt(int fd, std::shared_ptr<Seat> seat = nullptr, Protocol protocol = Protocol::grpc);
  // `make_room`: asks an idle connection to go; false if there is none. `may_accept`: whether callers are
  // accepted now.
  void listen(int fd, Protocol protocol, std::function<void(int fd)> on_accept,
              std::function<bool()> make_room, std::function<bool()> may_accept);
  void begin_drain();
  // Closes every connection, waits until the engine has finished everything of this loop, ends the thread.
  void stop();
  Stats& stats() { return stats_; }
  uint64_t connections() const { return assigned_.load(std::memory_order_relaxed); }
  bool drained() const { return listening_.load(std::memory_order_acquire) == 0 && connections() == 0; }

  // From its own thread:
  const Limits& limits() const { return limits_; }
  size_t max_message_bytes() const { return budgets_.max_message_bytes.load(std::memory_order_relaxed); }
  int64_t now() const { return now_ns_; }  // read once per visit, and before answers go out
  // How long requests that are read in this round may have waited for it.
  int64_t rested_ns() const { return rested_ns_; }
  int64_t read_clock() const { return clock_.now(); }
  // As now(), without the time in which this loop was stuck: it must not count against a peer.
  int64_t timer_now() const { return now_ns_ - lost_ns_; }
  Turn& turn() { return turn_; }
  Accounts& accounts() { return accounts_; }
  PeerAccounts& peer_accounts(const Seat* seat);  // null: of all connections without a seat
  SlabPool& slabs() { return slabs_; }
  AssemblyPool& assembly() { return assembly_; }
  CallPool<GrpcCall>& grpc_calls() { return grpc_calls_; }
  CallPool<RestCall>& rest_calls() { return rest_calls_; }
  SessionMemory& session_memory() { return session_memory_; }
  Application& application() { return *application_; }
  void turn_away(int fd, std::string_view reason) noexcept;  // a connection that there is no room for
  void add_dirty(Connection& connection) { dirty_.push_back(&connection); }
  void visit_again(Connection& connection);
  void on_refusal() { refusing_ = true; }  // of a request, for lack of capacity
  void watch(Connection& connection);
  // Counted each time; logged once in kShortageInterval and account.
  void on_shortage(Shortage account, int fd) noexcept;
  void on_closed(Connection& connection, End why) noexcept;

 private:
  static constexpr int64_t kShortageInterval = 10'000'000'000;
  struct Visit {
    Connection* connection;
    uint32_t events;
  };

  void run();
  void add(Socket socket, std::shared_ptr<Seat> seat, Protocol protocol);
  void reserve(size_t connections);
  const std::vector<Connection*>& list_connections() noexcept;
  void look_at_clock(int64_t expected_ns);
  void gather_visits(const epoll_event* events, int count);
  void visit_all();
  void visit(Connection& connection, uint32_t events);
  template <class Action>
  void guard(Connection& connection, Action action) noexcept;
  template <class Action>
  void guard(Action action) noexcept;
  void run_tasks() noexcept;
  // One port.
  struct Listener {
    int fd = -1;
    std::function<void(int fd)> on_accept;
    std::function<bool()> make_room, may_accept;
  };
  void place(const Listener& listener, int fd) noexcept;
  void accept(const Listener& listener, int most);
  void accept_with_spare(const Listener& listener) noexcept;
  bool open_spare() noexcept;
  void watch_listeners(bool on) noexcept;
  void stop_listening(Listener& listener);
  bool deliver();
  int64_t rest();
  void compute();
  void write_dirty();
  void sweep();
  void check_accounts() const;
  void close_all(End why);
  void free_closed();
  void on_unassigned(size_t connections) noexcept;

  const Limits limits_;
  const Budgets& budgets_;
  const TlsContext* tls_;
  std::function<void()> on_connection_closed_;
  int epoll_fd_, spare_fd_ = -1;
  Mailbox mailbox_;
  std::array<Listener, 2> listeners_;  // by Protocol

  // These outlive everything that charges them.
  Accounts accounts_;
  const std::shared_ptr<PeerLedger> seatless_ = std::make_shared<PeerLedger>();
  std::unordered_map<PeerLedger*, std::unique_ptr<PeerAccounts>> peers_;
  SlabPool slabs_{accounts_.requests};
  AssemblyPool assembly_;
  CallPool<GrpcCall> grpc_calls_{this};
  CallPool<RestCall> rest_calls_{this};
  SessionMemory session_memory_;
  std::unique_ptr<Application> application_;
  std::unordered_map<Connection*, std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> dirty_, again_, writing_, listed_;  // with room for all: see reserve
  std::vector<Visit> visits_;
  std::vector<std::unique_ptr<Connection>> closed_;
  const Clock& clock_;
  Turn turn_{clock_};
  int64_t now_ns_ = 0, lost_ns_ = 0, swept_ns_ = 0;
  bool crowded_ = false;   // the last round ended before it had visited all connections
  bool refusing_ = false;  // the last round refused requests
  int64_t rested_ns_ = 0;
  bool computing_ = false;  // the last round ended before it had run all batches
  bool draining_ = false, stopping_ = false;
  bool accepts_ = true;  // not while it is out of descriptors, or other loops are behind

  std::array<int64_t, kShortageCount> shortage_logged_ns_{};  // 0: never
  Stats stats_;
  std::atomic<uint64_t> assigned_{0};
  std::atomic<int> listening_{0};  // on so many ports
  std::thread thread_;
};

}  // namespace fused_mlp::front
