// SPDX-License-Identifier: Apache-2.0
#include "front/methods/bridge.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <system_error>

#include "front/rest/rest_head.hpp"

namespace fused_mlp::front {
namespace {

// The high bits of a call's number are the index of its loop.
constexpr int kLoopShift = 48;

// A task with its coroutine, queue and event, and what a handler keeps: tests/attack/test_memory.py measures
// it.
constexpr size_t kPythonCallBytes = 10u << 10;
// Text of C++ as objects of Python, twice: a list of pairs, and the dictionary that handlers see.
constexpr size_t kPythonFactor = 3;

}  // namespace

Bridge::Bridge(size_t max_bytes) : budget_(max_bytes), event_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
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

std::vector<Event> Bridge::drain(size_t most) {
  const std::lock_guard lock(mutex_);
  std::vector<Event> events = events_.take(most);
  for (Event& event : events) event.charge.release();
  if (!events_.empty()) return events;
  uint64_t count;
  [[maybe_unused]] const ssize_t n = ::read(event_fd_, &count, sizeof count);
  return events;
}

size_t Event::memory_bytes() const {
  size_t bytes = sizeof *this + body.capacity() + path.capacity() + peer_address.capacity();
  bytes += front::memory_bytes(metadata);
  for (const std::string& name : certificate_names) bytes += sizeof name + name.capacity();
  return bytes;
}

void Bridge::push(Event&& event) {
  std::unique_lock lock(mutex_);
  const bool first = events_.empty();
  const uint64_t address = event.address, connection = event.connection;
  events_.push(address, connection, std::move(event));
  lock.unlock();
  const uint64_t one = 1;
  if (!first) return;
  [[maybe_unused]] const ssize_t n = ::write(event_fd_, &one, sizeof one);
}

bool Bridge::offer(Event&& event) {
  if (!event.charge.resize(budget_, event.charge.bytes() + event.memory_bytes())) return false;
  push(std::move(event));
  return true;
}

void Bridge::on_failure(std::string_view request_id, std::string_view trace_id, std::string_view text) {
  Event event(EventKind::failure, std::string(text));
  event.path = request_id;
  if (!trace_id.empty()) event.metadata.emplace_back("trace_id", trace_id);
  offer(std::move(event));
}

void Bridge::request_load(std::string_view model, int64_t version) {
  Event event(EventKind::wanted, std::to_string(version));
  event.path = model;
  push(std::move(event));
}

void Bridge::on_bad_end(End why, std::string_view peer, std::string_view reason, int64_t now_ns) {
  Event event(EventKind::bad_end, std::string(reason));
  event.path = peer;
  {
    const std::lock_guard lock(mutex_);
    BadEnds& ends = bad_ends_[static_cast<size_t>(why)];
    if (now_ns - ends.logged_ns < kBadEndInterval) {
      ++ends.left_out;
      return;
    }
    ends.logged_ns = now_ns;
    if (ends.left_out != 0)
      event.body += "; " + std::to_string(ends.left_out) + " more since the last such line";
    ends.left_out = 0;
  }
  push(std::move(event));
}

void Bridge::on_shortage(std::string_view peer, std::string_view reason) {
  Event event(EventKind::shortage, std::string(reason));
  event.path = peer;
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
    Call* call = calls->find(number);
    if (call == nullptr) return;
    try {
      action(*calls, *call);
    } catch (const std::exception&) {  // Python will not send it again
      call->abort();
    }
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
  at_call(number, [](BridgeCalls& calls, Call& call) {
    calls.kept(call).message.release();
    call.message_done();
  });
}

bool BridgeCalls::add(Call& call, const Event& event) {
  Budget& budget = bridge_.budget();
  const size_t bytes = kPythonCallBytes + kPythonFactor * event.memory_bytes();
  const std::shared_ptr<PeerLedger>& ledger = call.accounts().ledger;
  Kept kept(ledger);
  // One connection may have as much as is left for the others of its address: see PeerAccount::room.
  if (!call.begin_control(bytes, ledger->control.room(budget.left())) || !kept.task.resize(budget, bytes))
    return false;
  const uint64_t number = static_cast<uint64_t>(index_) << kLoopShift | ++last_;
  calls_.emplace(number, Entry{&call, std::move(kept)});
  call.number = number;
  return true;
}

BridgeCalls::Kept BridgeCalls::remove(Call& call) {
  const auto found = calls_.find(call.number);
  Kept kept = std::move(found->second.kept);
  calls_.erase(found);
  call.number = 0;
  return kept;
}

Call* BridgeCalls::find(uint64_t number) {
  const auto found = calls_.find(number);
  return found == calls_.end() ? nullptr : found->second.call;
}

void BridgeMethod::start(Call& call, std::string body) {
  Event event(EventKind::start, call, std::move(body));
  if (const RestFields* rest = call.head().rest()) event.path.append(verb_name(rest->verb)).append(" ");
  event.path += call.head().path();
  event.metadata = std::move(call.head().metadata());
  event.certificate_names = call.certificate_names();
  event.peer_address = call.peer_address();
  event.deadline_ns = call.deadline_ns();
  call.on_metadata_taken();
  if (!calls_.add(call, event)) return refuse(call);
  event.call = call.number;
  if (calls_.bridge().offer(std::move(event))) return;
  calls_.remove(call);
  refuse(call);
}

void BridgeMethod::refuse(Call& call) {
  call.report_shortage(Shortage::control);
  call.finish(kResourceExhausted, "too many requests wait to be handled; retry later");
}

void BridgeMethod::on_start(Call& call) {
  if (client_streams_) start(call, {});
}

void BridgeMethod::on_message(Call& call, Message&& message) {
  std::string body(reinterpret_cast<const char*>(message.data()), message.size());
  message.release();  // a call may stay open for long; its slab is needed
  if (!client_streams_) return start(call, std::move(body));
  if (call.number == 0) return;
  Event event(EventKind::message, call, std::move(body));
  if (calls_.kept(call).message.resize(calls_.bridge().budget(), kPythonFactor * event.memory_bytes()) &&
      calls_.bridge().offer(std::move(event))) {
    return;
  }
  on_cancel(call);
  refuse(call);
}

void BridgeMethod::on_half_close(Call& call) {
  if (call.number == 0) return;
  calls_.bridge().push(Event(EventKind::half_close, call));
}

void BridgeMethod::on_cancel(Call& call) {
  if (call.number == 0) return;
  Event event(EventKind::cancel, call);
  event.charge = std::move(calls_.remove(call).task);  // until Python has heard of it
  calls_.bridge().push(std::move(event));
}

void BridgeMethod::on_refuse(Call& call, int) { on_cancel(call); }

void BridgeMethod::on_sent(Call& call) {
  if (call.unsent_bytes() != 0 || call.number == 0) return;
  calls_.bridge().push(Event(EventKind::writable, call));
}

}  // namespace fused_mlp::front
