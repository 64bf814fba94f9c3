// SPDX-License-Identifier: Apache-2.0
#include "front/http2/stream_table.hpp"

#include "front/http2/http2_session.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {

StreamTable::StreamTable(Loop& loop, PeerAccounts& accounts, Http2Session& session)
    : loop_(loop),
      accounts_(accounts),
      session_(session),
      held_(accounts.answers, loop.limits().max_output_bytes) {}

Call* StreamTable::look_up(int32_t stream_id) const { return session_.find(stream_id); }

Call* StreamTable::open(Connection& connection, int32_t stream_id) {
  if (open_calls_ * Call::kBytes >= accounts_.calls.room()) return nullptr;
  Call* call = loop_.calls().take();
  if (!call->attach(connection, stream_id)) {
    loop_.calls().give_back(call);
    return nullptr;
  }
  calls_.add(*call);
  ++open_calls_;
  last_found_ = heading_ = call;
  bump(loop_.stats().calls);
  bump(loop_.stats().open_calls);
  return call;
}

void StreamTable::end(Call& call) {
  if (last_found_ == &call) last_found_ = nullptr;
  if (heading_ == &call) heading_ = nullptr;
  calls_.remove(call);
  --open_calls_;
  bump(loop_.stats().open_calls, static_cast<uint64_t>(-1));
  call.detach();
}

void StreamTable::end_all() {
  while (!calls_.empty()) end(*calls_.first());
}

void StreamTable::sweep() {
  for (Call* call = calls_.first(); call != nullptr; call = CallList::next(*call)) call->sweep();
}

// Each call that waits has one turn.
void StreamTable::continue_held() {
  for (size_t turns = held_.count(); turns != 0 && held_.first() != nullptr && !held_.must_hold(); --turns) {
    if (loop_.turn().over_after_step()) return;
    Call& call = *held_.first();
    held_.remove(call);
    call.continue_reading();
  }
  if (!held_.windows_wait() || held_.must_hold()) return;
  held_.windows_opened();
  for (Call* call = calls_.first(); call != nullptr; call = CallList::next(*call)) call->open_window();
}

void StreamTable::refuse_held() {
  while (Call* call = held_.first()) {
    held_.remove(*call);
    call->refuse(kResourceExhausted, "earlier answers on this connection were not read in time");
  }
}

}  // namespace fused_mlp::front
