#include "front/stream_table.hpp"

#include "front/http2_session.hpp"
#include "front/loop.hpp"

namespace fused_mlp::front {

StreamTable::StreamTable(Loop& loop, Http2Session& session)
    : loop_(loop), session_(session), held_(loop.limits().max_output_bytes) {}

Call* StreamTable::find(int32_t stream_id) {
  if (last_found_ == nullptr || last_found_->stream_id() != stream_id) last_found_ = session_.find(stream_id);
  return last_found_;
}

Call& StreamTable::open(Connection& connection, int32_t stream_id) {
  Call* call = loop_.calls().take();
  call->attach(connection, stream_id);
  calls_.add(*call);
  last_found_ = call;
  bump(loop_.stats().calls);
  bump(loop_.stats().open_calls);
  return *call;
}

void StreamTable::end(Call& call) {
  if (last_found_ == &call) last_found_ = nullptr;
  calls_.remove(call);
  if (call.has_held_messages()) held_.remove(call.stream_id());
  bump(loop_.stats().open_calls, static_cast<uint64_t>(-1));
  call.detach();
}

void StreamTable::end_all() {
  while (!calls_.empty()) end(*calls_.first());
}

void StreamTable::sweep(int64_t now_ns) {
  for (Call* call = calls_.first(); call != nullptr; call = CallList::next(*call)) call->sweep(now_ns);
}

void StreamTable::continue_held() {
  while (!held_.empty() && !held_.must_hold()) {
    HeldRequests::Held held = held_.take_first();
    Call* call = find(held.stream_id);
    if (call != nullptr && !call->finished()) call->hand_over_held(std::move(held.message));
  }
  forget_last_found();
  if (!held_.empty()) return;
  held_.all_released();
  for (Call* call = calls_.first(); call != nullptr; call = CallList::next(*call)) {
    if (call->window_withheld() && !call->finished()) call->open_window();
  }
}

void StreamTable::refuse_held() {
  for (const HeldRequests::Held& held : held_.take_all()) {
    Call* call = find(held.stream_id);
    if (call == nullptr || call->finished()) continue;
    call->refuse(kResourceExhausted, "earlier answers on this connection were not read in time");
  }
  forget_last_found();
}

}  // namespace fused_mlp::front
