// SPDX-License-Identifier: Apache-2.0
// The module's exception. Refused carries the status, so that callers map data and never parse text.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "engine/status.hpp"

namespace fused_mlp {

// Raises Refused(text) with .status, .retry_after_ms, .lane: where to count it, or None, and .version: the
// one to load, or 0.
[[noreturn]] void raise_refused(Status status, const std::string& text, std::uint32_t retry_after_ms = 0,
                                nanobind::object lane = nanobind::none(), std::int64_t version = 0);

}  // namespace fused_mlp
