// What answers calls: a Method per RPC, an Application per loop. All of it runs on the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "front/message.hpp"

namespace fused_mlp::front {

class Call;

// Answers the calls of one RPC.
class Method {
 public:
  virtual ~Method() = default;
  // False: one message, handed over when the caller has closed its side. True: each message as it comes.
  virtual bool client_streams() const = 0;
  // The limit for one request message, where it is lower than the front's own.
  virtual size_t max_message_bytes() const { return SIZE_MAX; }
  virtual bool wants_metadata() const { return false; }
  virtual void on_start(Call&) {}
  virtual void on_message(Call&, Message&&) = 0;
  virtual void on_half_close(Call&) {}
  // No more answers are possible: the caller cancelled, or its connection is lost. Not called after finish().
  virtual void on_cancel(Call&) {}
  // The front itself ended the call (broken framing, a limit, the deadline), after on_start or instead of it.
  virtual void on_refuse(Call&, int /*code*/) {}
  // The peer has taken some of the answer.
  virtual void on_sent(Call&) {}
};

class Application {
 public:
  virtual ~Application() = default;
  virtual Method* find(std::string_view path) = 0;
  // Called after everything that had arrived was handed over. Runs batches; true: call again.
  virtual bool work() { return false; }
  // Called between rounds, at least once a second.
  virtual void tick() {}
  // Nothing it has submitted is unfinished.
  virtual bool idle() const { return true; }
};

}  // namespace fused_mlp::front
