// SPDX-License-Identifier: Apache-2.0
// One loop's view of the route table: one atomic load per request, no reference counting between threads.
// Loop thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/router.hpp"

namespace fused_mlp::front {

class LoopRoutes {
 public:
  // A table, and how many requests still point into it.
  struct Table {
    std::shared_ptr<const RouteTable> routes;
    uint64_t generation = 0;
    uint32_t users = 0;
  };

  explicit LoopRoutes(const Router& router) : router_(router) { refresh(); }

  Table& current() {
    if (router_.generation() != current_->generation) refresh();
    return *current_;
  }
  // Also called now and then by an idle loop: an old table, with its lanes and kernels, is freed when its
  // last user has gone.
  void refresh() {
    const uint64_t generation = router_.generation();
    if (current_->generation != generation) {
      auto fresh = std::make_unique<Table>();
      fresh->routes = router_.table();
      fresh->generation = generation;
      std::swap(current_, fresh);
      if (fresh->users != 0) old_.push_back(std::move(fresh));
    }
    if (!old_.empty()) std::erase_if(old_, [](const auto& table) { return table->users == 0; });
  }

 private:
  const Router& router_;
  std::unique_ptr<Table> current_ = std::make_unique<Table>();
  std::vector<std::unique_ptr<Table>> old_;
};

}  // namespace fused_mlp::front
