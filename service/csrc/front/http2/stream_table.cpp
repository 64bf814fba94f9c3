// SPDX-License-Identifier: Apache-2.0
#include "front/http2/stream_table.hpp"

#include "front/server/loop.hpp"

namespace fused_mlp::front {

StreamTable::StreamTable(Loop& loop, PeerAccounts& accounts, const Http2Session& session)
    : loop_(loop),
      accounts_(accounts),
      session_(session),
      held_{accounts.answers, loop.limits().max_output_bytes} {}

Call* StreamTable::open(Connection& connection, int32_t stream_id) {
  if (calls_.size() * Call::kBytes >= accounts_.calls.room()) return nullptr;
  Call* call = connection.rest() ? static_cast<Call*>(loop_.rest_calls().take()) : loop_.grpc_calls().take();
  if (!call->attach(connection, stream_id)) {
    call->recycle();
    return nullptr;
  }
  calls_.add(*call);
  last_found_ = heading_ = call;
  bump(loop_.stats().calls);
  bump(loop_.stats().open_calls);
  return call;
}

void StreamTable::end(Call& call) {
  if (last_found_ == &call) last_found_ = nullptr;
  if (heading_ == &call) heading_ = nullptr;
  calls_.remove(call);
  bump(loop_.stats().open_calls, static_cast<uint64_t>(-1));
  call.detach();
}

void StreamTable::end_all() {
  while (!calls_.empty()) end(*calls_.first());
}

void StreamTable::sweep() {
  for (Call* call = calls_.first(); call != nullptr; call = OpenCalls::next(*call)) call->sweep();
}

// Each call that waits has one turn.
void StreamTable::continue_held() {
  for (size_t turns = held_.calls.size(); turns != 0 && !held_.calls.empty() && !held_.must_hold(); --turns) {
    if (loop_.turn().over_after_step()) return;
    Call& call = *held_.calls.first();
    held_.calls.remove(call);
    call.continue_reading();
  }
  if (!held_.windows_wait || held_.must_hold()) return;
  held_.windows_wait = false;
  for (Call* call = calls_.first(); call != nullptr; call = OpenCalls::next(*call)) call->open_window();
}

void StreamTable::refuse_held() {
  while (Call* call = held_.calls.first()) {
    held_.calls.remove(*call);
    call->refuse(kResourceExhausted, "earlier answers on this connection were not read in time");
  }
}

}  // namespace fused_mlp::front
