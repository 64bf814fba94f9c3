// SPDX-License-Identifier: Apache-2.0
// Answers every unary call with its own message: what this front costs without any work (a benchmark's
// ceiling).
#pragma once

#include <memory>

#include "front/grpc/method.hpp"

namespace fused_mlp::front {

std::unique_ptr<Application> make_echo_application();

}  // namespace fused_mlp::front
