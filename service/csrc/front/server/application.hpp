// SPDX-License-Identifier: Apache-2.0
// What the native front serves: predictions and health checks itself, every other known RPC through Python.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "engine/router.hpp"
#include "front/grpc/method.hpp"
#include "front/methods/bridge.hpp"
#include "front/methods/health.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {

// What is served on the REST port.
struct RestOptions {
  bool on = false;
  std::vector<std::string> cors_origins;
};

struct PythonRpc {
  std::string path;
  bool client_streams;
};

// An RPC of Python goes before one of ours.
std::unique_ptr<Application> make_service_application(Loop& loop, Engine& engine, const Router& router,
                                                      Bridge& bridge, const HealthTable& health,
                                                      const std::vector<PythonRpc>& rpcs,
                                                      const RestOptions& rest = {});
// Nothing but what Python answers.
std::unique_ptr<Application> make_python_application(Loop& loop, Bridge& bridge,
                                                     const std::vector<PythonRpc>& rpcs);

}  // namespace fused_mlp::front
