// What the native front serves: the predictions itself, every other known RPC through Python.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "engine/router.hpp"
#include "front/bridge.hpp"
#include "front/loop.hpp"
#include "front/method.hpp"

namespace fused_mlp::front {

struct PythonRpc {
  std::string path;
  bool client_streams;
};

std::unique_ptr<Application> make_service_application(Loop& loop, Engine& engine, const Router& router,
                                                      Bridge& bridge, const std::vector<PythonRpc>& rpcs);

}  // namespace fused_mlp::front
