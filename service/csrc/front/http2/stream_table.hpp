// SPDX-License-Identifier: Apache-2.0
// The open calls of one connection, by stream, and the requests of theirs that are held back. Loop thread
// only.
#pragma once

#include <cstdint>

#include "front/grpc/call_list.hpp"
#include "front/memory/held_requests.hpp"

namespace fused_mlp::front {

class Connection;
class Http2Session;
class Loop;

class StreamTable {
 public:
  StreamTable(Loop& loop, PeerAccounts& accounts, Http2Session& session);

  bool empty() const { return calls_.empty(); }
  Call* find(int32_t stream_id) {
    if (last_found_ == nullptr || last_found_->stream_id() != stream_id) last_found_ = look_up(stream_id);
    return last_found_;
  }
  // The call whose request headers come in; null: none, or it has ended.
  Call* heading() const { return heading_; }
  void stop_heading() { heading_ = nullptr; }
  // The last call found is remembered only while frames are processed.
  void forget_last_found() { last_found_ = nullptr; }
  // Its headers follow. Null: too many calls are open, on this connection, of its address or in all.
  Call* open(Connection& connection, int32_t stream_id);
  void end(Call& call);
  void end_all();
  void sweep();

  HeldRequests& held() { return held_; }
  const HeldRequests& held() const { return held_; }
  const CallList& calls() const { return calls_; }
  // Hands over what is held, as far as it may. The peer's windows have opened, or calls have ended.
  void continue_held();
  // The peer does not take its answers in time: what is held behind them is refused, not computed.
  void refuse_held();

 private:
  Call* look_up(int32_t stream_id) const;

  Loop& loop_;
  PeerAccounts& accounts_;
  Http2Session& session_;
  CallList calls_;
  size_t open_calls_ = 0;
  Call* last_found_ = nullptr;  // saves looking it up for every frame
  Call* heading_ = nullptr;
  HeldRequests held_;
};

}  // namespace fused_mlp::front
