// SPDX-License-Identifier: Apache-2.0
// One loop's view of the callers: a request costs one atomic load and a look at what was found lately. Loop
// thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "access/callers.hpp"
#include "front/call/request_head.hpp"

namespace fused_mlp::front {

class Call;
class Loop;

// The peer of a connection, and the generation of the rules that it was looked up with.
struct ConnectionPeer {
  uint64_t generation = 0;
  Peer peer;
};

class LoopCallers {
 public:
  LoopCallers(Callers& callers, const Loop& loop);

  // Finds out whose call it is, and keeps that in the call; again when the rules have changed since, or the
  // caller has expired. nullopt: known.
  std::optional<Rejection> identify(Call& call);
  void tick();  // reads the time of day

 private:
  void refresh();
  int64_t now_s() const;

  Callers& callers_;
  const Loop& loop_;
  std::shared_ptr<const CallerTable> table_;
  uint64_t generation_ = 0;
  int64_t epoch_ns_ = 0;  // the time of day when the loop's clock was 0
  FoundCallers found_;
};

}  // namespace fused_mlp::front
