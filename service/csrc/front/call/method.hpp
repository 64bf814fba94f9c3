// SPDX-License-Identifier: Apache-2.0
// The interface of code that answers calls: a Method per RPC, and an Application per loop with the table of
// RPCs (methods/application.cpp). Runs on the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "front/call/message.hpp"
#include "front/http2/end.hpp"

namespace fused_mlp::front {

class Call;
class LoopCallers;

// Answers the calls of one RPC.
class Method {
 public:
  virtual ~Method() = default;
  // False: one message, handed over when the caller has closed its side. True: each message as it comes.
  virtual bool client_streams() const = 0;
  // package.Service/Method, of those whose requests are traced.
  virtual std::string_view name() const { return {}; }
  // The limit for one request message, where it is lower than the front's own.
  virtual size_t max_message_bytes() const { return SIZE_MAX; }
  virtual bool wants_metadata() const { return false; }
  // Refused before it begins unless its caller is known, where callers must be.
  virtual bool needs_caller() const { return false; }
  // How many messages of a streaming call may be in flight: handed over and not done.
  virtual uint32_t max_in_flight() const { return UINT32_MAX; }
  // How long a streaming call may stay open without a message, before the first one or after; 0: for ever.
  virtual double idle_timeout_s(bool /*first*/) const { return 0; }
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
  // The method of a request on the REST port: a prediction, or anything else.
  virtual Method* find_rest(bool /*infer*/) { return nullptr; }
  // Origins whose pages may call the REST port from a browser; "*": any.
  virtual const std::vector<std::string>& cors_origins() const {
    static const std::vector<std::string> none;
    return none;
  }
  // Whether the REST port answers to such a Host header.
  virtual bool allows_host(std::string_view) { return true; }
  // Null: every caller may do everything.
  virtual LoopCallers* callers() { return nullptr; }
  // Called after everything that had arrived was handed over. Runs batches; true: call again.
  virtual bool work() { return false; }
  // Called between rounds, at least once a second.
  virtual void tick() {}
  // A connection was ended for a reason that its peer or an operator should know.
  virtual void on_bad_end(End, std::string_view /*peer*/, std::string_view /*reason*/, int64_t /*now_ns*/) {}
  // A call was refused for lack of memory. Not called for each of them.
  virtual void on_shortage(std::string_view /*peer*/, std::string_view /*reason*/) {}
  // Nothing it has submitted is unfinished.
  virtual bool idle() const { return true; }
};

}  // namespace fused_mlp::front
