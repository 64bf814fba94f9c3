// SPDX-License-Identifier: Apache-2.0
// The RPCs of the native front: it answers predictions and health checks itself, every other known RPC
// through Python.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "access/callers.hpp"
#include "access/hosts.hpp"
#include "engine/engine.hpp"
#include "engine/route/router.hpp"
#include "front/call/method.hpp"
#include "front/methods/bridge.hpp"
#include "front/methods/health.hpp"
#include "front/server/loop.hpp"

namespace fused_mlp::front {

// The REST port.
struct RestOptions {
  bool on = false;
  std::vector<std::string> cors_origins;
  AllowedHosts hosts = AllowedHosts();
};

struct PythonRpc {
  std::string path;
  bool client_streams;
};

// An RPC of Python takes precedence over ours. `callers`: null where every caller may do everything.
std::unique_ptr<Application> make_service_application(Loop& loop, Engine& engine, const Router& router,
                                                      Bridge& bridge, const HealthTable& health,
                                                      const std::vector<PythonRpc>& rpcs,
                                                      const RestOptions& rest = {},
                                                      Callers* callers = nullptr);
// Only the RPCs that Python answers.
std::unique_ptr<Application> make_python_application(Loop& loop, Bridge& bridge,
                                                     const std::vector<PythonRpc>& rpcs);
// Answers every unary call with its own message: measures the front without any work (a benchmark's ceiling).
std::unique_ptr<Application> make_echo_application();

}  // namespace fused_mlp::front
