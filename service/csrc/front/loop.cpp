#include "front/loop.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "engine/busy_threads.hpp"
#include "engine/clock.hpp"

namespace fused_mlp::front {
namespace {

constexpr int kEventsPerRound = 256;
constexpr int64_t kMillisecond = 1'000'000;
constexpr int kIdleTick_ms = 1000;
constexpr int kBusyTick_ms = 50;  // while calls are open: how late a deadline may be noticed

// Tags of what is not a connection.
constexpr uint64_t kWakeTag = 0;
constexpr uint64_t kListenTag = 1;

thread_local const Loop* this_thread_loop = nullptr;

int64_t clock_ns() { return SteadyClock().now(); }

int checked(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return fd;
}

}  // namespace

Loop::Loop(const Limits& limits, const TlsContext* tls, std::function<void()> on_connection_closed)
    : limits_(limits),
      tls_(tls),
      on_connection_closed_(std::move(on_connection_closed)),
      epoll_fd_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      assembly_(limits.max_buffered_bytes) {
  epoll_event event{EPOLLIN, {.u64 = kWakeTag}};
  ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, mailbox_.fd(), &event);
}

Loop::~Loop() {
  ::close(epoll_fd_);
  if (listen_fd_ >= 0) ::close(listen_fd_);
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

void Loop::begin_drain() {
  run_soon([this] {
    draining_ = true;
    if (listen_fd_ >= 0) ::close(listen_fd_);
    listen_fd_ = -1;
    std::vector<Connection*> all;
    for (auto& [connection, owner] : connections_) all.push_back(connection);
    for (Connection* connection : all) connection->begin_drain();
  });
}

void Loop::flush() noexcept {
  if (this_thread_loop != this) mailbox_.wake();
}

void Loop::adopt(int fd) {
  assigned_.fetch_add(1, std::memory_order_relaxed);
  run_soon([this, fd] {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    auto connection = std::make_unique<Connection>(*this, fd, tls_);
    Connection* raw = connection.get();
    connections_.emplace(raw, std::move(connection));
    bump(stats_.accepted);
    bump(stats_.connections);
    epoll_event event{EPOLLIN, {.ptr = raw}};
    raw->epoll_events_set = EPOLLIN;
    ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
    if (draining_ || stopping_) raw->close(End::done);
  });
}

void Loop::listen(int fd, std::function<void(int fd)> on_accept) {
  run_soon([this, fd, on_accept = std::move(on_accept)]() mutable {
    listen_fd_ = fd;
    spare_fd_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    on_accept_ = std::move(on_accept);
    epoll_event event{EPOLLIN, {.u64 = kListenTag}};
    ::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
  });
}

void Loop::accept_all() {
  while (listen_fd_ >= 0) {
    const int fd = ::accept4(listen_fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      on_accept_(fd);
    } else if (errno == EMFILE || errno == ENFILE) {
      // Out of descriptors: use the spare one to accept and close, or epoll would report the caller again and
      // again.
      ::close(spare_fd_);
      if (const int refused = ::accept(listen_fd_, nullptr, nullptr); refused >= 0) ::close(refused);
      spare_fd_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
      stats_.count_end(End::refused);
      return;
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

void Loop::on_closed(Connection& connection, End why) {
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

void Loop::handle(uint64_t tag, uint32_t events) {
  if (tag == kWakeTag) {
    mailbox_.acknowledge();
    mailbox_.run_tasks();
  } else if (tag == kListenTag) {
    accept_all();
  } else {
    auto* connection = reinterpret_cast<Connection*>(tag);
    if (connection->closed()) return;
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) connection->on_readable();
    if ((events & EPOLLOUT) != 0 && !connection->closed()) {
      connection->on_readable();  // TLS may have been waiting to write before it could read
      connection->write();
    }
  }
}

void Loop::deliver() {
  Delivery* posted = mailbox_.take_posted();
  if (posted == nullptr) return;
  now_ns_ = clock_ns();  // answers are timed by it, and computing them took time since the round began
  Mailbox::deliver_all(posted);
}

void Loop::write_dirty() {
  writing_.swap(dirty_);
  for (Connection* connection : writing_) connection->write();
  writing_.clear();
}

// Answers of one batch leave before the next batch is run.
void Loop::compute() {
  bool more = true;
  while (more) {
    more = application_->work();
    deliver();
    write_dirty();
  }
}

void Loop::sweep() {
  std::vector<Connection*> all;
  all.reserve(connections_.size());
  for (auto& [connection, owner] : connections_) all.push_back(connection);
  for (Connection* connection : all) connection->sweep(now_ns_);
  application_->tick();
  write_dirty();
}

void Loop::serve_here(std::unique_ptr<Application> application) {
  application_ = std::move(application);
  this_thread_loop = this;
}

void Loop::round(int timeout_ms) {
  epoll_event events[kEventsPerRound];
  const int n = ::epoll_wait(epoll_fd_, events, kEventsPerRound, again_.empty() ? timeout_ms : 0);
  const BusyScope busy;
  now_ns_ = clock_ns();
  for (int i = 0; i < n; ++i) handle(events[i].data.u64, events[i].events);
  if (!again_.empty()) {
    std::vector<Connection*> again;
    again.swap(again_);
    for (Connection* connection : again) {
      if (!connection->closed()) connection->on_readable();
    }
  }
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
  assigned_.fetch_sub(count, std::memory_order_relaxed);
  on_connection_closed_();
}

void Loop::run() {
  this_thread_loop = this;
  // OpenSSL writes to sockets without MSG_NOSIGNAL: a peer that hung up must not end the process.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  while (!stopping_ || !application_->idle()) {
    const bool calls_open = stats_.open_calls.load(std::memory_order_relaxed) != 0;
    round(calls_open || stopping_ || draining_ ? kBusyTick_ms : kIdleTick_ms);
  }
  application_.reset();
  this_thread_loop = nullptr;
}

}  // namespace fused_mlp::front
