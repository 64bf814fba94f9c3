// One event loop: a thread, an epoll set, and the connections it owns. Each round reads everything that has
// arrived, lets the application compute, and writes all answers: one batch and one write per connection,
// however many requests came.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/ticket.hpp"
#include "front/call_list.hpp"
#include "front/connection.hpp"
#include "front/limits.hpp"
#include "front/mailbox.hpp"
#include "front/message.hpp"
#include "front/method.hpp"
#include "front/slab.hpp"
#include "front/stats.hpp"

namespace fused_mlp::front {

class Loop final : public CompletionSink {
 public:
  Loop(const Limits& limits, const TlsContext* tls, std::function<void()> on_connection_closed);
  ~Loop();  // stop() must have been called if start() was

  // For tests that drive a loop by hand, without a thread: what it serves, then one round after the other.
  void serve_here(std::unique_ptr<Application> application);
  void round(int timeout_ms);

  // From any thread:
  void start(std::unique_ptr<Application> application);
  void post(Delivery* delivery) noexcept { mailbox_.post(delivery); }
  void flush() noexcept override;  // wakes the loop, unless it is the one calling
  void run_soon(std::function<void()> task) { mailbox_.run_soon(std::move(task)); }
  void adopt(int fd);  // a new connection
  void listen(int fd, std::function<void(int fd)> on_accept);
  void begin_drain();
  // Closes every connection, waits until the engine has finished everything of this loop, ends the thread.
  void stop();
  Stats& stats() { return stats_; }
  uint64_t connections() const { return assigned_.load(std::memory_order_relaxed); }

  // From its own thread:
  const Limits& limits() const { return limits_; }
  int64_t now() const { return now_ns_; }  // read once per round, and before answers go out
  SlabPool& slabs() { return slabs_; }
  AssemblyPool& assembly() { return assembly_; }
  CallPool& calls() { return calls_; }
  Application& application() { return *application_; }
  bool draining() const { return draining_; }
  void add_dirty(Connection& connection) { dirty_.push_back(&connection); }
  void visit_again(Connection& connection) { again_.push_back(&connection); }
  void watch(Connection& connection);
  void on_closed(Connection& connection, End why);

 private:
  void run();
  void handle(uint64_t tag, uint32_t events);
  void accept_all();
  void deliver();
  void compute();
  void write_dirty();
  void sweep();
  void close_all(End why);
  void free_closed();

  const Limits limits_;
  const TlsContext* tls_;
  std::function<void()> on_connection_closed_;
  int epoll_fd_, listen_fd_ = -1, spare_fd_ = -1;
  Mailbox mailbox_;
  std::function<void(int fd)> on_accept_;

  SlabPool slabs_;
  AssemblyPool assembly_;
  CallPool calls_{this};
  std::unique_ptr<Application> application_;
  std::unordered_map<Connection*, std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> dirty_, again_, writing_;
  std::vector<std::unique_ptr<Connection>> closed_;
  int64_t now_ns_ = 0, swept_ns_ = 0;
  bool draining_ = false, stopping_ = false;

  Stats stats_;
  std::atomic<uint64_t> assigned_{0};
  std::thread thread_;
};

}  // namespace fused_mlp::front
