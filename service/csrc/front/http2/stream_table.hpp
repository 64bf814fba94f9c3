// SPDX-License-Identifier: Apache-2.0
// The open calls of one connection, by stream, and their requests that are held back. Loop thread only.
#pragma once

#include <cstdint>

#include "front/call/call.hpp"
#include "front/http2/http2_session.hpp"

namespace fused_mlp::front {

class Connection;
class Loop;

// Back-pressure on a peer that does not take its answers. They are parked in their calls; when they reach the
// limit, its further requests are held in theirs, as bytes that are accounted for, and are not computed.
// Frames are still read, because some of them open the windows.
struct HeldRequests {
  bool must_hold() const {
    return reaches_max_output(parked_bytes, answers, max_parked_bytes) ||
           reaches_max_output(parked_bytes + expected_bytes, answers, SIZE_MAX);
  }
  // Something waits (a request, or the window of a streaming caller) and need not wait any longer.
  bool can_continue() const { return (!calls.empty() || windows_wait) && !must_hold(); }

  const PeerAccount& answers;
  const size_t max_parked_bytes;
  size_t parked_bytes = 0;  // of answers that wait for the peer
  // Bytes of answers that are being computed. They count toward what all connections may have, not toward
  // max_output_bytes: a peer that reads has none of them parked.
  size_t expected_bytes = 0;
  CallList<& Call::held> calls = {};  // whose requests wait, in the order they came
  bool windows_wait = false;          // of streaming callers
};

class StreamTable {
 public:
  StreamTable(Loop& loop, PeerAccounts& accounts, const Http2Session& session);

  bool empty() const { return calls_.empty(); }
  Call* find(int32_t stream_id) {
    if (last_found_ == nullptr || last_found_->stream_id() != stream_id)
      last_found_ = session_.find(stream_id);
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
  const OpenCalls& calls() const { return calls_; }
  // Hands over what is held, as far as it may. The peer's windows have opened, or calls have ended.
  void continue_held();
  // The peer does not read its answers in time: requests held behind them are refused, not computed.
  void refuse_held();

 private:
  Loop& loop_;
  PeerAccounts& accounts_;
  const Http2Session& session_;
  OpenCalls calls_;
  Call* last_found_ = nullptr;  // saves a lookup for every frame
  Call* heading_ = nullptr;
  HeldRequests held_;
};

}  // namespace fused_mlp::front
