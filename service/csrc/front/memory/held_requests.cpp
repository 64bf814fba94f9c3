// SPDX-License-Identifier: Apache-2.0
#include "front/memory/held_requests.hpp"

#include "front/grpc/call.hpp"

namespace fused_mlp::front {

void HeldRequests::hold(Call& call) {
  Call::Held& links = call.held_;
  if (links.listed) return;
  links = {last_, nullptr, true};
  (last_ != nullptr ? last_->held_.next : first_) = &call;
  last_ = &call;
  ++count_;
}

void HeldRequests::remove(Call& call) {
  Call::Held& links = call.held_;
  if (!links.listed) return;
  (links.previous != nullptr ? links.previous->held_.next : first_) = links.next;
  (links.next != nullptr ? links.next->held_.previous : last_) = links.previous;
  links = {};
  --count_;
}

}  // namespace fused_mlp::front
