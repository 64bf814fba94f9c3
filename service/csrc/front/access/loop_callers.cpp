// SPDX-License-Identifier: Apache-2.0
#include "front/access/loop_callers.hpp"

#include <chrono>

#include "front/call/call.hpp"
#include "front/http2/connection.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {

LoopCallers::LoopCallers(Callers& callers, const Loop& loop)
    : callers_(callers), loop_(loop), table_(callers.table()) {
  tick();
}

void LoopCallers::tick() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  epoch_ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() - loop_.read_clock();
}

int64_t LoopCallers::now_s() const { return (loop_.now() + epoch_ns_) / kSecond; }

void LoopCallers::refresh() {
  const uint64_t generation = callers_.generation();
  if (generation == generation_) return;
  table_ = callers_.table();
  found_.renew(*table_);
  generation_ = generation;
}

std::optional<Rejection> LoopCallers::identify(Call& call) {
  refresh();
  Call::Identified& before = call.identified;
  if (before.generation == generation_ && before.caller != nullptr && !before.caller->expired(now_s())) {
    return std::nullopt;
  }
  Connection* const connection = call.connection();
  if (connection == nullptr) return std::nullopt;
  if (connection->peer.generation != generation_) {
    connection->peer = {generation_,
                        Peer(*table_, ip_address_of(connection->fd()), connection->certificate_names())};
  }
  Identity found =
      callers_.identify(*table_, call.head().shown(), connection->peer.peer, now_s(), loop_.now(), &found_);
  before = {generation_, std::move(found.caller)};
  if (found.known == Known::known) return std::nullopt;
  return Rejection{200, found.grpc_code(), found.text(), found.retry_after_ms};
}

}  // namespace fused_mlp::front
