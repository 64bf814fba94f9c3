// SPDX-License-Identifier: Apache-2.0
#include "front/server/loop.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <system_error>

#include "engine/run/background.hpp"
#include "engine/run/busy_threads.hpp"

namespace fused_mlp::front {
namespace {

constexpr int kEventsPerRound = 256;
constexpr int kAcceptsPerRound = 64;
constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kRound_ns = kMillisecond / 2;     // for reading, before epoll is asked
constexpr int64_t kCompute_ns = kMillisecond / 10;  // for computing: a batch that takes longer is a worker's
constexpr int64_t kNewConnectionCost_ns =
    kMillisecond;  // a new connection comes after those that have cost little
// HTTP/1.1 is cheap to open and to fill, and many callers come on a new connection each time.
constexpr int64_t kNewRestConnectionCost_ns = 4 * kMillisecond;
// While requests are refused, sockets are left to fill for so long: a wake-up for each request that is
// refused would take the core from those that are not.
constexpr timespec kRest = {0, kMillisecond / 4};
constexpr int64_t kUnnoticed_ns = 50 * kMillisecond;  // a longer step is a stall of ours
constexpr int kIdleTick_ms = 1000;
constexpr int kBusyTick_ms = 50;  // while calls are open: how late a deadline may be noticed

// Tags of what is not a connection.
constexpr uint64_t kWakeTag = 0;
constexpr uint64_t kListenTag = 1;  // and the next one: by Protocol

constexpr const char* kStopping = "the server is stopping";  // to peers, in GOAWAY

thread_local const Loop* this_thread_loop = nullptr;

int checked(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return fd;
}

}  // namespace

Loop::Loop(const Limits& limits, Budgets& budgets, unsigned loops, const TlsContext* tls,
           std::function<void()> on_connection_closed, const Clock& clock)
    : limits_(limits),
      budgets_(budgets),
      tls_(tls),
      on_connection_closed_(std::move(on_connection_closed)),
      epoll_fd_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      accounts_(budgets, loops),
      clock_(clock) {
  epoll_event event{EPOLLIN, {.u64 = kWakeTag}};
  ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, mailbox_.fd(), &event);
}

Loop::~Loop() {
  ::close(epoll_fd_);
  for (const Listener& listener : listeners_) {
    if (listener.fd >= 0) ::close(listener.fd);
  }
  if (spare_fd_ >= 0) ::close(spare_fd_);
}

void Loop::start(std::unique_ptr<Application> application) {
  application_ = std::move(application);
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "mlp-loop");
}

void Loop::stop() {
  if (!thread_.joinable()) return;
  run_soon([this] {
    stopping_ = true;
    close_all(End::stopped);
  });
  thread_.join();
}

// An exception, most likely for lack of memory, ends the connection and nothing else.
template <class Action>
void Loop::guard(Connection& connection, Action action) noexcept {
  try {
    action();
  } catch (const std::exception&) {
    connection.fail();
  }
}

// Runs what belongs to no connection; an exception skips it.
template <class Action>
void Loop::guard(Action action) noexcept {
  try {
    action();
  } catch (const std::exception&) {
    bump(stats_.failures);
  }
}

void Loop::begin_drain() {
  run_soon([this] {
    draining_ = true;
    for (Listener& listener : listeners_) {
      if (listener.fd >= 0) stop_listening(listener);
    }
    for (Connection* connection : list_connections()) {
      guard(*connection, [&] { connection->begin_drain(kStopping); });
    }
  });
}

// Accept pending connections and send them GOAWAY, so that clients go elsewhere; a reset would fail their
// calls.
void Loop::stop_listening(Listener& listener) {
  accept(listener, INT_MAX);
  ::close(std::exchange(listener.fd, -1));
  listening_.fetch_sub(1, std::memory_order_release);
  on_connection_closed_();
}

void Loop::flush() noexcept {
  if (this_thread_loop != this) mailbox_.wake();
}

void Loop::adopt(int fd, std::shared_ptr<Seat> seat, Protocol protocol) {
  assigned_.fetch_add(1, std::memory_order_relaxed);
  try {
    run_soon([this, fd, protocol, seat = std::move(seat)]() mutable {
      try {
        add(Socket(fd), std::move(seat), protocol);
      } catch (const std::exception&) {
        bump(stats_.failures);
        on_unassigned(1);
      }
    });
  } catch (const std::exception&) {
    on_unassigned(1);
    throw;
  }
}

void Loop::add(Socket socket, std::shared_ptr<Seat> seat, Protocol protocol) {
  const int on = 1;
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  reserve(connections_.size() + closed_.size() + 1);
  auto connection = std::make_unique<Connection>(*this, std::move(socket), tls_, std::move(seat), protocol);
  Connection* raw = connection.get();
  raw->spent_ns = protocol == Protocol::rest ? kNewRestConnectionCost_ns : kNewConnectionCost_ns;
  try {
    connections_.emplace(raw, std::move(connection));
  } catch (const std::exception&) {
    std::erase(dirty_, raw);
    throw;
  }
  // Nothing below throws.
  bump(stats_.accepted);
  bump(stats_.connections);
  epoll_event event{EPOLLIN, {.ptr = raw}};
  raw->epoll_events_set = EPOLLIN;
  ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, raw->fd(), &event);
  if (stopping_) return raw->close(End::stopped);
  if (draining_) guard(*raw, [&] { raw->begin_drain(kStopping); });
}

// Room on every list: a round, closing and failing allocate nothing of the loop's own.
void Loop::reserve(size_t connections) {
  for (auto* list : {&dirty_, &again_, &writing_, &listed_}) list->reserve(connections);
  visits_.reserve(connections + kEventsPerRound);
  closed_.reserve(connections);
}

// The connections that are open now: some may close while the caller goes through them.
const std::vector<Connection*>& Loop::list_connections() noexcept {
  listed_.clear();
  for (auto& [connection, owner] : connections_) listed_.push_back(connection);
  return listed_;
}

void Loop::listen(int fd, Protocol protocol, std::function<void(int fd)> on_accept,
                  std::function<bool()> make_room, std::function<bool()> may_accept) {
  ++listening_;
  Listener made{fd, std::move(on_accept), std::move(make_room), std::move(may_accept)};
  run_soon([this, protocol, listener = std::move(made)]() mutable {
    const auto index = static_cast<size_t>(protocol);
    const int fd = listener.fd;
    listeners_[index] = std::move(listener);
    open_spare();
    epoll_event event{EPOLLIN, {.u64 = kListenTag + index}};
    ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
  });
}

void Loop::turn_away(int fd, std::string_view reason) noexcept {
  stats_.count_end(End::refused);
  guard([&] { application_->on_bad_end(End::refused, peer_name(fd), reason, now_ns_); });
  ::close(fd);
}

PeerAccounts& Loop::peer_accounts(const Seat* seat) {
  const std::shared_ptr<PeerLedger>& ledger = seat != nullptr ? seat->ledger : seatless_;
  const auto known = peers_.find(ledger.get());
  if (known != peers_.end()) return *known->second;
  return *peers_.emplace(ledger.get(), std::make_unique<PeerAccounts>(accounts_, ledger)).first->second;
}

void Loop::on_shortage(Shortage account, int fd) noexcept {
  const auto index = static_cast<size_t>(account);
  bump(stats_.shortages[index]);
  int64_t& logged_ns = shortage_logged_ns_[index];
  if (logged_ns != 0 && now_ns_ - logged_ns < kShortageInterval) return;
  logged_ns = now_ns_;
  guard([&] { application_->on_shortage(peer_name(fd), kShortages[index].reason); });
}

void Loop::place(const Listener& listener, int fd) noexcept {
  try {
    listener.on_accept(fd);
  } catch (const std::exception&) {
    bump(stats_.failures);
    ::close(fd);
  }
}

// Out of descriptors: the caller gets the spare one, and an idle connection makes room for another spare.
// Until there is one, nothing is accepted: epoll would report the next caller again and again. Without an
// idle connection the caller is closed.
void Loop::accept_with_spare(const Listener& listener) noexcept {
  bool room = false;
  guard([&] { room = listener.make_room(); });
  ::close(std::exchange(spare_fd_, -1));
  if (const int fd = ::accept4(listener.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); fd >= 0) {
    room ? place(listener, fd) : turn_away(fd, "no file descriptors left");
  }
  if (!open_spare()) watch_listeners(false);
}

bool Loop::open_spare() noexcept {
  if (spare_fd_ < 0) spare_fd_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  return spare_fd_ >= 0;
}

void Loop::watch_listeners(bool on) noexcept {
  accepts_ = on;
  for (size_t index = 0; index < listeners_.size(); ++index) {
    epoll_event event{on ? static_cast<uint32_t>(EPOLLIN) : 0u, {.u64 = kListenTag + index}};
    if (listeners_[index].fd >= 0) ::epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, listeners_[index].fd, &event);
  }
}

void Loop::accept(const Listener& listener, int most) {
  for (int i = 0; i < most && listener.fd >= 0; ++i) {
    // The next sweep asks again. A listener that closes takes all who have connected.
    if (most == kAcceptsPerRound && !listener.may_accept()) return watch_listeners(false);
    const int fd = ::accept4(listener.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      place(listener, fd);
    } else if (errno == EMFILE || errno == ENFILE) {
      return accept_with_spare(listener);
    } else if (errno != ECONNABORTED && errno != EINTR) {
      return;
    }
  }
}

void Loop::watch(Connection& connection) {
  const uint32_t events = connection.epoll_events();
  if (events == connection.epoll_events_set) return;
  connection.epoll_events_set = events;
  epoll_event event{events, {.ptr = &connection}};
  ::epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, connection.fd(), &event);
}

void Loop::on_closed(Connection& connection, End why) noexcept {
  stats_.count_end(why);
  bump(stats_.connections, static_cast<uint64_t>(-1));
  ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, connection.fd(), nullptr);
  const auto found = connections_.find(&connection);
  closed_.push_back(std::move(found->second));  // freed at the end of the round: events may still name it
  connections_.erase(found);
}

void Loop::close_all(End why) {
  while (!connections_.empty()) connections_.begin()->first->close(why);
}

void Loop::visit_again(Connection& connection) {
  if (connection.waiting) return;
  connection.waiting = true;
  again_.push_back(&connection);
}

// Reads the clock. What goes beyond `expected_ns` since the last look was a stall of ours: the process was
// stopped, or starved, or computed for long.
void Loop::look_at_clock(int64_t expected_ns) {
  const int64_t now_ns = clock_.now();
  if (now_ns_ != 0) lost_ns_ += std::max<int64_t>(0, now_ns - now_ns_ - expected_ns);
  now_ns_ = now_ns;
}

void Loop::run_tasks() noexcept {
  mailbox_.acknowledge();
  bump(stats_.failures, mailbox_.run_tasks());
}

void Loop::gather_visits(const epoll_event* events, int count) {
  visits_.clear();
  for (int i = 0; i < count; ++i) {
    const uint64_t tag = events[i].data.u64;
    if (tag == kWakeTag) {
      run_tasks();
    } else if (tag < kListenTag + listeners_.size()) {
      accept(listeners_[tag - kListenTag], kAcceptsPerRound);
    } else if (auto* connection = reinterpret_cast<Connection*>(tag); !connection->waiting) {
      visits_.push_back({connection, events[i].events});
    }
  }
  for (Connection* connection : again_) {
    visits_.push_back({connection, connection->epoll_events_set & ~static_cast<uint32_t>(EPOLLRDHUP)});
  }
}

// Visit each connection once, until the round's time is used up. The rest follow in the next round: epoll
// reports them again, or they stay in again_.
void Loop::visit_all() {
  if (crowded_) {
    std::sort(visits_.begin(), visits_.end(),
              [](const Visit& a, const Visit& b) { return a.connection->spent_ns < b.connection->spent_ns; });
  }
  again_.clear();
  const int64_t end_ns = now_ns_ + kRound_ns;
  size_t i = 0;
  for (; i < visits_.size() && (i == 0 || now_ns_ < end_ns); ++i) {
    visits_[i].connection->waiting = false;
    visit(*visits_[i].connection, visits_[i].events);
  }
  crowded_ = i < visits_.size();
  for (; i < visits_.size(); ++i) {
    if (visits_[i].connection->waiting) again_.push_back(visits_[i].connection);
  }
}

void Loop::visit(Connection& connection, uint32_t events) {
  if (connection.closed()) return;
  turn_.begin(now_ns_);
  guard(connection, [&] {
    if ((events & EPOLLRDHUP) != 0) return connection.close(End::peer);
    connection.on_readable();  // also when writable: TLS may have been waiting to write before it could read
    if ((events & EPOLLOUT) != 0) connection.write();
  });
  const int64_t begin_ns = now_ns_;
  look_at_clock(kUnnoticed_ns);
  connection.spent_ns += now_ns_ - begin_ns;
}

bool Loop::deliver() {
  Delivery* posted = mailbox_.take_posted();
  if (posted == nullptr) return false;
  look_at_clock(
      kUnnoticed_ns);  // answers are timed by it, and computing them took time since the round began
  Mailbox::deliver_all(posted);
  return true;
}

void Loop::write_dirty() {
  writing_.swap(dirty_);
  for (Connection* connection : writing_) {
    guard(*connection, [&] { connection->write(); });
  }
  writing_.clear();
}

// Answers of one batch leave before the next batch is run. An answer may let its caller's next request in.
void Loop::compute() {
  const int64_t end_ns = now_ns_ + kCompute_ns;
  do {
    computing_ = false;
    guard([&] { computing_ = application_->work(); });
    computing_ |= deliver();
    write_dirty();
  } while (computing_ && now_ns_ < end_ns);
}

void Loop::sweep() {
  if (!accepts_ && open_spare()) watch_listeners(true);
  for (Connection* connection : list_connections()) {
    guard(*connection, [&] { connection->sweep(); });
  }
  guard([&] { application_->tick(); });
  write_dirty();
  for (auto& [ledger, accounts] : peers_) accounts->give_back_spare();
  std::erase_if(peers_, [](const auto& entry) { return entry.second->unused(); });
  accounts_.give_back_spare();
  check_accounts();
}

// In builds for tests: what is charged is what the connections hold. While the engine computes, requests and
// calls whose connection has gone are charged, too.
void Loop::check_accounts() const {
#ifdef FUSED_MLP_CHECK_ACCOUNTS
  size_t answers = 0, calls = 0;
  bool right = true;
  for (auto& [connection, owner] : connections_) right &= connection->count_memory(answers, calls);
  for (const auto& connection : closed_) right &= connection->count_memory(answers, calls);
  right &= answers <= accounts_.answers.used() && calls <= accounts_.calls.used();
  if (application_->idle()) right &= answers == accounts_.answers.used() && calls == accounts_.calls.used();
  if (connections_.empty() && closed_.empty() && application_->idle()) right &= accounts_.empty();
  size_t of_peers[] = {0, 0, 0};
  for (auto& [ledger, accounts] : peers_) {
    of_peers[0] += accounts->answers.used();
    of_peers[1] += accounts->calls.used();
    of_peers[2] += accounts->requests.used();
  }
  right &= of_peers[0] == accounts_.answers.used() && of_peers[1] == accounts_.calls.used() &&
           of_peers[2] <= accounts_.requests.used();  // slabs are of no peer
  if (!right) {
    std::fprintf(stderr, "accounts: answers %zu, recomputed %zu; calls %zu, recomputed %zu; requests %zu\n",
                 accounts_.answers.used(), answers, accounts_.calls.used(), calls, accounts_.requests.used());
    std::abort();
  }
#endif
}

void Loop::serve_here(std::unique_ptr<Application> application) {
  application_ = std::move(application);
  this_thread_loop = this;
}

// Sleeps until there are answers to send, or new requests have waited for long enough. Returns how long it
// slept.
int64_t Loop::rest() {
  const int64_t begin_ns = clock_.now();
  pollfd answers{mailbox_.fd(), POLLIN, 0};
  ::ppoll(&answers, 1, &kRest, nullptr);
  return clock_.now() - begin_ns;
}

void Loop::round(int timeout_ms) {
  epoll_event events[kEventsPerRound];
  const bool more = !again_.empty() || crowded_ || computing_;
  rested_ns_ = std::exchange(refusing_, false) && !more ? rest() : 0;
  const int count = ::epoll_wait(epoll_fd_, events, kEventsPerRound, more ? 0 : timeout_ms);
  const BusyScope busy;
  look_at_clock(timeout_ms * kMillisecond + kUnnoticed_ns);
  accounts_.look_at_left();
  gather_visits(events, count);
  visit_all();
  compute();
  if (now_ns_ - swept_ns_ >= timeout_ms * kMillisecond) {
    swept_ns_ = now_ns_;
    sweep();
  }
  free_closed();
}

void Loop::free_closed() {
  if (closed_.empty()) return;
  const auto is_closed = [](Connection* connection) { return connection->closed(); };
  std::erase_if(again_, is_closed);
  std::erase_if(dirty_, is_closed);
  const size_t count = closed_.size();
  closed_.clear();
  if (!accepts_ && open_spare()) watch_listeners(true);
  on_unassigned(count);
}

void Loop::on_unassigned(size_t connections) noexcept {
  assigned_.fetch_sub(connections, std::memory_order_relaxed);
  on_connection_closed_();
}

void Loop::run() {
  this_thread_loop = this;
  take_short_turns();
  // OpenSSL writes to sockets without MSG_NOSIGNAL: a peer that hung up must not end the process.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  while (!stopping_ || !application_->idle()) {
    const bool calls_open = stats_.open_calls.load(std::memory_order_relaxed) != 0;
    round(calls_open || stopping_ || draining_ || !accepts_ ? kBusyTick_ms : kIdleTick_ms);
  }
  check_accounts();
  application_.reset();
  this_thread_loop = nullptr;
}

}  // namespace fused_mlp::front
