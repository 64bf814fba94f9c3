#include "front/bridge.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace fused_mlp::front {
namespace {

// The high bits of a call's number are the index of its loop.
constexpr int kLoopShift = 48;

}  // namespace

Bridge::Bridge() : event_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (event_fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

Bridge::~Bridge() { ::close(event_fd_); }

size_t Bridge::attach(BridgeCalls& calls) {
  const std::lock_guard lock(mutex_);
  loops_.push_back(&calls);
  return loops_.size() - 1;
}

void Bridge::detach(size_t index) {
  const std::lock_guard lock(mutex_);
  loops_[index] = nullptr;
}

std::vector<Event> Bridge::drain() {
  uint64_t count;
  [[maybe_unused]] const ssize_t n = ::read(event_fd_, &count, sizeof count);
  std::vector<Event> events;
  const std::lock_guard lock(mutex_);
  events.swap(events_);
  waiting_bytes_ = 0;
  return events;
}

size_t Event::memory_bytes() const {
  size_t bytes = sizeof *this + body.size() + path.size();
  for (const auto& [name, value] : metadata)
    bytes += sizeof(Metadata::value_type) + name.size() + value.size();
  return bytes;
}

void Bridge::push(Event&& event) {
  const size_t bytes = event.memory_bytes();
  std::unique_lock lock(mutex_);
  add(std::move(event), bytes, lock);
}

bool Bridge::offer(Event&& event, size_t most_bytes) {
  const size_t bytes = event.memory_bytes();
  std::unique_lock lock(mutex_);
  if (waiting_bytes_ + bytes > most_bytes) return false;
  add(std::move(event), bytes, lock);
  return true;
}

void Bridge::add(Event&& event, size_t bytes, std::unique_lock<std::mutex>& lock) {
  const bool first = events_.empty();
  events_.push_back(std::move(event));
  waiting_bytes_ += bytes;
  lock.unlock();
  const uint64_t one = 1;
  if (!first) return;
  [[maybe_unused]] const ssize_t n = ::write(event_fd_, &one, sizeof one);
}

void Bridge::on_failure(std::string_view request_id, std::string_view text) {
  Event event(EventKind::failure, 0, std::string(text));
  event.path = request_id;
  push(std::move(event));
}

// Runs `action` on the call's loop, if the call still exists by then.
template <class Action>
void Bridge::at_call(uint64_t number, Action action) {
  const std::lock_guard lock(mutex_);
  const size_t index = number >> kLoopShift;
  if (index >= loops_.size() || loops_[index] == nullptr) return;
  BridgeCalls* calls = loops_[index];
  calls->loop().run_soon([calls, number, action = std::move(action)]() mutable {
    if (Call* call = calls->find(number)) action(*calls, *call);
  });
}

void Bridge::send(uint64_t number, std::string message) {
  at_call(number, [message = std::move(message)](BridgeCalls&, Call& call) {
    std::copy_n(message.data(), message.size(), call.add_message(message.size()));
    call.flush();
  });
}

void Bridge::finish(uint64_t number, int code, std::string text, Metadata trailers) {
  at_call(number,
          [code, text = std::move(text), trailers = std::move(trailers)](BridgeCalls& calls, Call& call) {
            calls.remove(call);
            call.finish(code, text, trailers);
          });
}

void Bridge::message_done(uint64_t number) {
  at_call(number, [](BridgeCalls&, Call& call) { call.message_done(); });
}

void BridgeCalls::add(Call& call) {
  call.number = static_cast<uint64_t>(index_) << kLoopShift | ++last_;
  calls_.emplace(call.number, &call);
}

void BridgeCalls::remove(Call& call) {
  calls_.erase(call.number);
  call.number = 0;
}

Call* BridgeCalls::find(uint64_t number) {
  const auto found = calls_.find(number);
  return found == calls_.end() ? nullptr : found->second;
}

void BridgeMethod::start(Call& call, std::string body) {
  calls_.add(call);
  Event event(EventKind::start, call.number, std::move(body));
  event.path = call.head().path();
  event.metadata = std::move(call.head().metadata());
  event.deadline_ns = call.deadline_ns();
  hand_over(call, std::move(event));
}

void BridgeMethod::hand_over(Call& call, Event&& event) {
  const bool known = event.kind != EventKind::start;
  if (calls_.bridge().offer(std::move(event), call.loop().limits().max_buffered_bytes)) return;
  known ? on_cancel(call) : calls_.remove(call);
  call.finish(kResourceExhausted, "too many requests wait to be handled; retry later");
}

void BridgeMethod::on_start(Call& call) {
  if (client_streams_) start(call, {});
}

void BridgeMethod::on_message(Call& call, Message&& message) {
  std::string body(reinterpret_cast<const char*>(message.data()), message.size());
  message.release();  // a call may stay open for long; its slab is needed
  if (!client_streams_) return start(call, std::move(body));
  hand_over(call, Event(EventKind::message, call.number, std::move(body)));
}

void BridgeMethod::on_half_close(Call& call) {
  calls_.bridge().push(Event(EventKind::half_close, call.number));
}

void BridgeMethod::on_cancel(Call& call) {
  if (call.number == 0) return;
  calls_.bridge().push(Event(EventKind::cancel, call.number));
  calls_.remove(call);
}

void BridgeMethod::on_refuse(Call& call, int) { on_cancel(call); }

void BridgeMethod::on_sent(Call& call) {
  if (call.unsent_bytes() != 0 || call.number == 0) return;
  calls_.bridge().push(Event(EventKind::writable, call.number));
}

}  // namespace fused_mlp::front
