// SPDX-License-Identifier: Apache-2.0
// A resolved route as Python holds it, and the table that keeps it alive.
#pragma once

#include <memory>

#include "engine/router.hpp"

namespace fused_mlp {

struct PythonRoute {
  std::shared_ptr<const RouteTable> table;
  Route route;
};

}  // namespace fused_mlp
