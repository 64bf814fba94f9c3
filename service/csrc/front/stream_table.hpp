// The open calls of one connection, by stream, and the requests of theirs that are held back. Loop thread
// only.
#pragma once

#include <cstdint>

#include "front/call_list.hpp"
#include "front/held_requests.hpp"

namespace fused_mlp::front {

class Connection;
class Http2Session;
class Loop;

class StreamTable {
 public:
  StreamTable(Loop& loop, Http2Session& session);

  bool empty() const { return calls_.empty(); }
  Call* find(int32_t stream_id);
  // The last call found is remembered only while frames are processed.
  void forget_last_found() { last_found_ = nullptr; }
  Call& open(Connection& connection, int32_t stream_id);
  void end(Call& call);
  void end_all();
  void sweep(int64_t now_ns);

  HeldRequests& held() { return held_; }
  // Hands over what is held, as far as it may. The peer's windows have opened, or calls have ended.
  void continue_held();
  // The peer does not take its answers in time: what is held behind them is refused, not computed.
  void refuse_held();

 private:
  Loop& loop_;
  Http2Session& session_;
  CallList calls_;
  Call* last_found_ = nullptr;  // saves looking it up for every header
  HeldRequests held_;
};

}  // namespace fused_mlp::front
