// SPDX-License-Identifier: Apache-2.0
// The Python objects for a ticket and a completion queue.
#pragma once

#include <memory>

#include "bindings/completion.hpp"

namespace fused_mlp {

struct TicketHandle {
  Ref<PythonTicket> ticket;
};

struct CompletionQueue {
  std::shared_ptr<CompletionChannel> channel = std::make_shared<CompletionChannel>();
  CompletionQueue() = default;
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;
  ~CompletionQueue() { channel->close(); }
};

}  // namespace fused_mlp
